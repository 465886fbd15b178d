"""A checkpoint of Megatron's as it lies on disk: which file has which parameter."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from megatron_ds.checkpoint.megatron.names import flatten, is_parameter
from megatron_ds.checkpoint.megatron.pickled import ALLOWED
from megatron_ds.checkpoint.safe_load import load_file
from megatron_ds.errors import CheckpointError, Problem

MEGATRON_TRACKER, DEEPSPEED_TRACKER = "latest_checkpointed_iteration.txt", "latest"
# Not theirs: our options of a model, in files whose arguments can't be written here.
MODEL_KEY = "megatron_ds_model"


@dataclass(frozen=True)
class Place:
    """Where a parameter stands.

    Attributes:
        files: one for each tensor-parallel rank, in their order.
        section: the key of the file's content that holds the state dict; None when all of it is one.
        name: in that state dict, with dots.
    """

    files: tuple[Path, ...]
    section: str | None
    name: str


@dataclass(frozen=True)
class TheirCheckpoint:
    """A checkpoint whose files were found and whose names were read.

    Attributes:
        origin: the file that states arguments and iteration.
        arguments: of the run that saved; empty where the file has none.
        options: of the model, in our words, where an export of ours left them in place of arguments.
        checkpoint_version: decides on the order of rows.
        value_first: of a gated MLP the value's rows come before the gate's, as in BLOOM's fork.
        iteration: of the training that saved, where stated.
        places: our name of a parameter → where it stands.
        head_copy: the copy of tied embeddings on the last stage.
        strange: their names that have no counterpart here.
    """

    origin: Path
    arguments: Mapping[str, Any]
    checkpoint_version: float
    value_first: bool
    iteration: int | None
    places: Mapping[str, Place]
    head_copy: Place | None = None
    strange: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None


@dataclass
class Places:
    """Collects the places of parameters while files are looked through."""

    found: dict[str, Place] = field(default_factory=dict)
    head_copy: Place | None = None
    strange: list[str] = field(default_factory=list)

    def add(self, name: str | None, place: Place) -> None:
        """Notes where our `name` stands; a name that is not known, or known already, is strange."""
        if name is None or name in self.found:
            self.strange.append(place.name)
        else:
            self.found[name] = place


def read_whole(path: Path) -> Mapping[str, Any]:
    """The content of a file.

    Raises:
        CheckpointError: it can't be read, or is no dict.
    """
    content = load_file(path, ALLOWED)
    if not isinstance(content, Mapping):
        raise CheckpointError(Problem(f"{path} holds a {type(content).__name__}; Megatron's files hold a dict"))
    return content


def read_section(path: Path, section: str | None) -> dict[str, Tensor]:
    """The weights of a state dict in a file, by dotted name.

    Raises:
        CheckpointError: the file can't be read or has no such section.
    """
    content: Any = read_whole(path)
    if section is not None:
        content = content.get(section)
    if not isinstance(content, Mapping):
        raise CheckpointError(Problem(f"{path} has no state dict named {section!r}"))
    return {name: value for name, value in flatten(content) if is_parameter(name) and isinstance(value, Tensor)}


ReadSection = Callable[[Path, str | None], Mapping[str, Tensor]]


def arguments_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a file states; empty when it states none."""
    arguments = content.get("args")
    if isinstance(arguments, Namespace):
        return dict(vars(arguments))
    return dict(arguments) if isinstance(arguments, Mapping) else {}


def iteration_in(content: Mapping[str, Any]) -> int | None:
    """The iteration that a file states."""
    iteration = content.get("iteration", content.get("total_iters"))
    return iteration if isinstance(iteration, int) else None


def all_ranks(files: Mapping[tuple[int, int], Path], folder: Path, what: str) -> list[tuple[Path, ...]]:
    """Files by pipeline stage (or layer), each with one for every tensor-parallel rank.

    Args:
        files: (stage, tensor-parallel rank) → file.
        folder: where they lie, for the message.
        what: the file of one stage and rank as the user knows it, with two numbers to fill in.

    Raises:
        CheckpointError: some are missing.
    """
    stages = sorted({stage for stage, _ in files})
    tp_size = 1 + max(rank for _, rank in files)
    missing = [what.format(stage, rank) for stage in stages for rank in range(tp_size) if (stage, rank) not in files]
    if missing:
        raise CheckpointError(
            Problem(
                f"{folder} is not whole: {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''} missing "
                f"({len(files)} of {len(stages) * tp_size} files are there)",
                advice="copy the files of all ranks into one folder",
            )
        )
    return [tuple(files[stage, rank] for rank in range(tp_size)) for stage in stages]
