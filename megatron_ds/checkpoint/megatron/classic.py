"""Reading Megatron's own files: ``iter_*/mp_rank_TT[_PPP]/model_optim_rng.pt``, one for each rank of a model.

DeepSpeed's ``mp_rank_TT_model_states.pt`` of a run without a pipeline hold the same state dict, as `module`. Source:
NVIDIA Megatron-LM, megatron/checkpointing.py (`get_checkpoint_name`, `save_checkpoint`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint.megatron.found import (
    Place,
    Places,
    TheirCheckpoint,
    all_ranks,
    arguments_in,
    iteration_in,
    read_section,
    read_whole,
)
from megatron_ds.checkpoint.megatron.names import of_stage
from megatron_ds.errors import CheckpointError, Problem

_RANK_FOLDER = re.compile(r"mp_rank_(\d+)(?:_(\d+))?")
_DEEPSPEED_FILE = re.compile(r"mp_rank_(\d+)_model_states\.pt")
# With a distributed optimizer, older versions called the file by what is left in it.
_FILE_NAMES = ("model_optim_rng.pt", "model_rng.pt")


def classic_files(folder: Path) -> dict[tuple[int, int], Path]:
    """(stage, tensor-parallel rank) → file, of Megatron's own folders."""
    files = {}
    for path in folder.glob("mp_rank_*"):
        found = _RANK_FOLDER.fullmatch(path.name)
        inside = [path / name for name in _FILE_NAMES if (path / name).is_file()]
        if found and inside:
            files[int(found[2] or 0), int(found[1])] = inside[0]
    return files


def deepspeed_files(folder: Path) -> dict[tuple[int, int], Path]:
    """(0, tensor-parallel rank) → file, of a run of DeepSpeed without a pipeline."""
    matches = [(_DEEPSPEED_FILE.fullmatch(path.name), path) for path in folder.glob("mp_rank_*")]
    return {(0, int(found[1])): path for found, path in matches if found}


def open_classic(folder: Path, files: Mapping[tuple[int, int], Path]) -> TheirCheckpoint:
    """Finds out which file has which parameter.

    Stages may hold different numbers of blocks, and several chunks each: `model0`, `model1` … of an interleaved
    schedule.

    Args:
        folder: the checkpoint.
        files: (stage, tensor-parallel rank) → file.

    Raises:
        CheckpointError: files are missing or can't be read.
    """
    has_pipeline = any(stage for stage, _ in files)
    stages = all_ranks(files, folder, "mp_rank_{1:02d}_{0:03d}" if has_pipeline else "mp_rank_{1:02d}")
    first = read_whole(stages[0][0])
    arguments = arguments_in(first)
    places = Places()
    num_layers = 0
    # Chunk 0 of all stages comes before chunk 1 of the first one.
    for section in _sections(first, stages[0][0]):
        for stage_files in stages:
            num_layers += _add_chunk(places, stage_files, section, num_layers)
    return TheirCheckpoint(
        origin=stages[0][0],
        arguments=arguments,
        checkpoint_version=float(first.get("checkpoint_version", 0)),
        value_first=bool(arguments.get("glu_activation")),
        iteration=iteration_in(first),
        places=places.found,
        head_copy=places.head_copy,
        strange=tuple(places.strange),
    )


def _sections(content: Mapping[str, Any], path: Path) -> Sequence[str]:
    for name in ("model", "module"):
        if content.get(name) is not None:
            return [name]
    chunks = sorted((name for name in content if re.fullmatch(r"model\d+", name)), key=lambda name: int(name[5:]))
    if not chunks:
        raise CheckpointError(Problem(f"{path} holds no model: its keys are {', '.join(map(str, content))}"))
    return chunks


def _add_chunk(places: Places, files: tuple[Path, ...], section: str, first_layer: int) -> int:
    """Notes the places of one chunk's parameters; returns its number of blocks."""
    layers = set()
    for name in read_section(files[0], section):
        place, meaning = Place(files, section, name), of_stage(name)
        if meaning is None:
            places.strange.append(name)
        elif meaning.name is None:
            places.head_copy = place
        elif meaning.layer is None:
            places.add(meaning.name, place)
        else:
            layers.add(meaning.layer)
            places.add(f"layers.{first_layer + meaning.layer}.{meaning.name}", place)
    return len(layers)


def without_core_head_copy(their: TheirCheckpoint, *, untied: bool) -> TheirCheckpoint:
    """In a tied model of core's, the last stage's `output_layer` is the copy of the embeddings, not a head."""
    head, embeddings = their.places.get("lm_head.weight"), their.places.get("word_embeddings.weight")
    if untied or head is None or embeddings is None or head.files == embeddings.files:
        return their
    places = {name: place for name, place in their.places.items() if name != "lm_head.weight"}
    return replace(their, places=places, head_copy=head)
