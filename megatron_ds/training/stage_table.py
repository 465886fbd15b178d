"""The start-up table of a pipeline: which layers and how many parameters each stage holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from megatron_ds.models import LayerDef, ParallelTransformerLayer
from megatron_ds.mpu import ShardSpec

_HEADER = ("stage", "transformer layers", "parameters", "share", "beside them")


def stage_table(layers: Sequence[LayerDef], stages: Sequence[range], specs: Mapping[str, ShardSpec]) -> list[str]:
    """One line for each stage below a header.

    Parameters are counted whole, over all tensor-parallel ranks. A stage that holds a copy of a tied weight counts
    it, so that the shares, of the sum over all stages, are those of memory and not of the model.

    Args:
        layers: the whole model.
        stages: places in `layers` that each stage holds.
        specs: how every parameter is cut, by canonical name.
    """
    sizes = [_parameters(layers, stage, specs) for stage in stages]
    rows = [
        (
            str(number),
            _transformer_layers(layers, stage),
            f"{size:,}",
            f"{size / sum(sizes):.1%}",
            ", ".join(_others(layers, stage)) or "–",
        )
        for number, (stage, size) in enumerate(zip(stages, sizes, strict=True))
    ]
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (_HEADER, *rows)]
    return ["  ".join(row).rstrip() for row in padded]


def _parameters(layers: Sequence[LayerDef], stage: range, specs: Mapping[str, ShardSpec]) -> int:
    owners = {layers[index].tied_to or layers[index].name for index in stage}
    shapes = [spec.full_shape for name, spec in specs.items() if any(name.startswith(f"{owner}.") for owner in owners)]
    return sum(math.prod(shape) for shape in shapes)


def _transformer_layers(layers: Sequence[LayerDef], stage: range) -> str:
    names = [layers[index].name for index in stage if issubclass(layers[index].module_type, ParallelTransformerLayer)]
    if not names:
        return "0"
    return f"{len(names)}: {names[0]}" + (f" … {names[-1]}" if len(names) > 1 else "")


def _others(layers: Sequence[LayerDef], stage: range) -> list[str]:
    held = {layers[index].name for index in stage}
    return [
        layer.name
        if layer.tied_to is None
        else f"{layer.name} ({'shares' if layer.tied_to in held else 'copy of'} {layer.tied_to})"
        for layer in (layers[index] for index in stage)
        if not issubclass(layer.module_type, ParallelTransformerLayer)
    ]
