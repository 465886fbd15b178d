"""``megatron-ds checkpoint export``: a checkpoint of ours for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_ds.checkpoint.apart import check_apart
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.cli import checkpoint_huggingface, checkpoint_megatron
from megatron_ds.cli.checkpoint_formats import Format, add_step, run_format
from megatron_ds.cli.weights_progress import with_progress
from megatron_ds.utils.logging import logger


def _add_megatron_arguments(parser: argparse.ArgumentParser) -> None:
    add_step(parser)
    checkpoint_megatron.add_export_arguments(parser)


def _megatron(arguments: argparse.Namespace) -> None:
    reader = open_checkpoint(Path(arguments.input), arguments.step)
    check_apart(Path(arguments.output), reader.folder)
    with with_progress(reader.weights(), "export") as followed:
        checkpoint_megatron.run_export(followed, arguments, reader.manifest.progress["step"])
    logger.info("%s: written as %s", arguments.output, arguments.layout)


FORMATS: Mapping[str, Format] = {
    "hf": checkpoint_huggingface.EXPORT,
    "megatron": Format("Megatron-LM, Megatron-DeepSpeed", _add_megatron_arguments, _megatron),
}


def main(argv: Sequence[str]) -> None:
    """Writes the weights of a checkpoint in another program's format.

    Args:
        argv: the command line after ``megatron-ds checkpoint export``.

    Raises:
        ConfigError: the format can't express the model, or an option is wrong.
        CheckpointError: the checkpoint is missing or broken, or nothing can be written.
    """
    run_format(argv, "export", "--format", FORMATS, "Writes the weights of a checkpoint for other programs.")
