"""Reading folders of DeepSpeed's pipelines: ``layer_LL-model_TT-model_states.pt``, one for each layer and rank.

The number of a layer is its place in the fork's list of layers, which counts steps without weights too: BLOOM's fork
has embeddings at 01, blocks from 03 and the final norm 2 after the last one; Microsoft's has blocks from 02, and older
versions from 03. So a layer is known by what is in it, and a block's number is its rank among the blocks. Sources:
`GPTModelPipe` in megatron/model/gpt_model.py of bigscience and Microsoft Megatron-DeepSpeed; DeepSpeed,
deepspeed/runtime/pipe/module.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from megatron_ds.checkpoint.megatron.found import (
    MODEL_KEY,
    Place,
    Places,
    TheirCheckpoint,
    all_ranks,
    arguments_in,
    iteration_in,
    read_section,
    read_whole,
)
from megatron_ds.checkpoint.megatron.names import of_block, of_embedding
from megatron_ds.errors import CheckpointError, Problem

_LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
_STATES = "mp_rank_00_model_states.pt"


def layer_files(folder: Path) -> dict[tuple[int, int], Path]:
    """(number of the layer, tensor-parallel rank) → file."""
    matches = [(_LAYER_FILE.fullmatch(path.name), path) for path in folder.glob("layer_*")]
    return {(int(found[1]), int(found[2])): path for found, path in matches if found}


def open_pipeline_folder(folder: Path) -> TheirCheckpoint:
    """Finds out which file has which parameter.

    Args:
        folder: the checkpoint, ``global_stepN``.

    Raises:
        CheckpointError: files are missing or can't be read, or come from GPT-NeoX.
    """
    layers = all_ranks(layer_files(folder), folder, "layer_{:02d}-model_{:02d}-model_states.pt")
    places = Places()
    blocks: list[int] = []
    for files in layers:
        names = list(read_section(files[0], None))
        _refuse_neox(names, files[0])
        is_block = any(name.startswith("mlp.") for name in names)
        for name in names:
            ours = of_block(name) if is_block else _outside(name, names)
            prefix = f"layers.{len(blocks)}." if is_block and ours is not None else ""
            places.add(ours if ours is None else prefix + ours, Place(files, None, name))
        if is_block:
            blocks.append(_number(files[0]))
    _refuse_gaps(blocks, folder)
    states = folder / _STATES
    content = read_whole(states) if states.is_file() else {}
    arguments = arguments_in(content)
    return TheirCheckpoint(
        origin=states if content else folder,
        arguments=arguments,
        checkpoint_version=float(content.get("checkpoint_version", 3.0)),
        value_first=bool(arguments.get("glu_activation")) if arguments else _is_bloom(layers),
        iteration=iteration_in(content),
        places=places.found,
        strange=tuple(places.strange),
        options=content.get(MODEL_KEY),
    )


def _outside(name: str, names: Collection[str]) -> str | None:
    """Our name for a parameter of a layer that is no block."""
    if name == "lm_head.weight":
        return name
    # A norm is a layer of its own and has nothing else.
    return f"final_layernorm.{name}" if set(names) <= {"weight", "bias"} else of_embedding(name)


def _is_bloom(layers: Sequence[tuple[Path, ...]]) -> bool:
    """Whether a step without weights stands before the last layer, the final norm, as in BLOOM's fork alone."""
    numbers = [_number(files[0]) for files in layers]
    return len(numbers) > 1 and numbers[-1] - numbers[-2] == 2


def _number(path: Path) -> int:
    found = _LAYER_FILE.fullmatch(path.name)
    assert found is not None, "only files of layers come here"
    return int(found[1])


def _refuse_gaps(blocks: Sequence[int], folder: Path) -> None:
    """Blocks stand one after the other in every fork's list."""
    missing = sorted(set(range(blocks[0], blocks[-1])) - set(blocks)) if blocks else []
    if missing:
        raise CheckpointError(
            Problem(
                f"{folder} is not whole: layer {', '.join(map(str, missing))} between the others is missing",
                advice="copy the files of all layers into one folder",
            )
        )


def _refuse_neox(names: Collection[str], path: Path) -> None:
    if "final_linear.weight" in names or set(names) in ({"norm.weight"}, {"norm.weight", "norm.bias"}):
        raise CheckpointError(
            Problem(
                f"{path} is GPT-NeoX's: its files don't say which model they hold, and its ranks have biases to add up",
                advice="convert it with GPT-NeoX's tools/ckpts/convert_neox_to_hf.py, and import with --from hf",
            )
        )
