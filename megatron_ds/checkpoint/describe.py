"""What a checkpoint holds, as a table for people and as JSON for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.mpu import ShardSpec
from megatron_ds.utils.text import counted


def description(checkpoint: CheckpointReader) -> dict[str, Any]:
    """What a checkpoint holds. Opens no file but the manifest, and one with weights for their dtype.

    Returns:
        ``folder, kind, step, progress, layout, has_optimizer, num_parameters, bytes, files, model`` and ``parameters``:
        name → shape, dtype, cut and shape of a shard.
    """
    manifest, specs = checkpoint.manifest, checkpoint.specs
    dtype = str(checkpoint.read(next(iter(specs))).dtype).removeprefix("torch.")
    return {
        "folder": str(checkpoint.folder),
        "kind": manifest.kind,
        "step": manifest.progress["step"],
        "progress": manifest.progress,
        "layout": str(manifest.layout),
        "has_optimizer": manifest.has_optimizer,
        "num_parameters": sum(math.prod(spec.full_shape) for spec in specs.values()),
        "bytes": sum(file["bytes"] for file in manifest.files.values()),
        "files": {name: file["bytes"] for name, file in manifest.files.items()},
        "model": manifest.model,
        "parameters": {
            name: {
                "shape": list(spec.full_shape),
                "dtype": dtype,
                "cut": spec.kind,
                "shard": list(spec.local_shape(manifest.layout.tp_size)),
            }
            for name, spec in specs.items()
        },
    }


def report(checkpoint: CheckpointReader, *, files: bool = False) -> Iterator[str]:
    """Lines of text about a checkpoint.

    Args:
        checkpoint: the checkpoint.
        files: a line for each file instead of a count by kind.
    """
    facts, model, layout = description(checkpoint), checkpoint.model, checkpoint.manifest.layout
    consumed = counted(facts["progress"]["consumed_samples"], "sample")
    yield f"{facts['folder']}: step {facts['step']}, {consumed} consumed"
    yield f"  layout      {facts['layout']}; files of {'an engine' if facts['kind'] == 'deepspeed' else 'a tool'}"
    yield (
        f"  model       {_kind(model)}, {facts['num_parameters']:,} parameters: {counted(model.num_layers, 'layer')}, "
        f"hidden {model.hidden_size}, {counted(model.num_attention_heads, 'head')}, vocabulary {model.vocab_size}"
    )
    yield f"  optimizer   {'fp32 weights and moments' if facts['has_optimizer'] else 'none: weights only'}"
    yield f"  files       {len(facts['files'])}, {facts['bytes'] / 1e6:,.1f} MB"
    if files:
        yield from (f"    {size:>15,}  {name}" for name, size in facts["files"].items())
    yield ""
    yield from _parameter_table(checkpoint.specs, next(iter(facts["parameters"].values()))["dtype"], layout.tp_size)


def _kind(model: ModelConfig) -> str:
    heads = {"lm": "", "none": " without head"}
    head = heads.get(model.output_head, f" for {model.output_head.replace('_', ' ')}")
    return model.model_type.upper() + head


def folded_name(name: str) -> str:
    """One name for the same parameter of all transformer layers: ``layers.*.…``."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _parameter_table(specs: dict[str, ShardSpec], dtype: str, tp_size: int) -> Iterator[str]:
    """One line for each kind of parameter: those of all transformer layers are one where they are alike."""
    rows: Counter[tuple[str, ...]] = Counter()
    for name, spec in specs.items():
        general = folded_name(name)
        shapes = (_shape(spec.full_shape), _shape(spec.local_shape(tp_size)))
        rows[general, shapes[0], spec.kind, shapes[1]] += 1
    header = ("parameter", f"shape ({dtype})", "cut", f"on each of {tp_size}")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(4)]
    for row, count in ((header, 0), *rows.items()):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {f'{count} x' if count > 1 else '':>6} {cells}".rstrip()


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
