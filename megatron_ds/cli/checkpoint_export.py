"""``megatron-ds checkpoint export``: a checkpoint of ours for other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron_ds.cli import checkpoint_huggingface
from megatron_ds.cli.checkpoint_formats import Format, run_format

FORMATS: Mapping[str, Format] = {"hf": checkpoint_huggingface.EXPORT}


def main(argv: Sequence[str]) -> None:
    """Writes the weights of a checkpoint in another program's format.

    Args:
        argv: the command line after ``megatron-ds checkpoint export``.

    Raises:
        ConfigError: the format can't express the model, or an option is wrong.
        CheckpointError: the checkpoint is missing or broken, or nothing can be written.
    """
    run_format(argv, "export", "--format", FORMATS, "Writes the weights of a checkpoint for other programs.")
