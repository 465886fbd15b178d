"""Telling that a folder holds another program's weights, with the command that reads them."""

from __future__ import annotations

from pathlib import Path

from megatron_ds.checkpoint.manifest import MANIFEST_NAME
from megatron_ds.errors import CheckpointError, Problem

# A file that another program writes, the program, and its name in `checkpoint import --from`.
_OTHERS = (
    ("config.json", "a model of Hugging Face transformers", "hf"),
    ("latest_checkpointed_iteration.txt", "a checkpoint of Megatron-LM or one of its forks", "megatron"),
)


def refuse_foreign(folder: Path) -> None:
    """Refuses a folder that another program wrote.

    Raises:
        CheckpointError: it did; says how to import it.
    """
    if holds_own(folder):
        return
    for name, what, format_name in _OTHERS:
        if (folder / name).is_file():
            raise CheckpointError(
                Problem(
                    f"{folder} holds {what}",
                    advice=f"megatron-ds checkpoint import --from {format_name} --input {folder} --output DIR makes a "
                    "checkpoint of it",
                )
            )


def refuse_own(folder: Path) -> None:
    """Refuses to import what needs no import.

    Args:
        folder: of one checkpoint, or of a run.

    Raises:
        CheckpointError: it is a checkpoint of this project.
    """
    if holds_own(folder):
        raise CheckpointError(
            Problem(
                f"{folder} holds a checkpoint of megatron_ds already",
                advice="use it as it is, or write it anew with megatron-ds checkpoint reshard",
            )
        )


def holds_own(folder: Path) -> bool:
    """Whether a folder is a checkpoint of this project, or that of a run which has one."""
    return (folder / MANIFEST_NAME).is_file() or any(folder.glob(f"*/{MANIFEST_NAME}"))
