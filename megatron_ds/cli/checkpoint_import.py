"""``megatron-ds checkpoint import``: weights of other programs as a checkpoint of ours."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

import torch

from megatron_ds.checkpoint.apart import check_apart
from megatron_ds.checkpoint.write import write_checkpoint
from megatron_ds.cli import checkpoint_huggingface, checkpoint_megatron
from megatron_ds.cli.checkpoint_formats import Format, run_format, tell_how_to_train_on
from megatron_ds.cli.weights_progress import with_progress
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.utils.logging import logger


def _add_megatron_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=list(COMPUTE_DTYPES), help="dtype of the weights; theirs when not given")
    checkpoint_megatron.add_import_arguments(parser)


def _megatron(arguments: argparse.Namespace) -> None:
    check_apart(Path(arguments.output), Path(arguments.input))
    weights = checkpoint_megatron.run_import(arguments)
    precision = arguments.dtype
    if precision is None:
        # The one in which none of them loses anything: a fork may keep norms in fp32.
        widest = reduce(torch.promote_types, {tensor.dtype for _, tensor in weights.items()})
        precision = next(name for name, dtype in COMPUTE_DTYPES.items() if dtype == widest)
    with with_progress(weights, "import") as followed:
        folder = write_checkpoint(Path(arguments.output), followed, options={}, precision=precision)
    logger.info("%s: %s, vocab_size %d", folder, precision, weights.model.vocab_size)
    tell_how_to_train_on(Path(arguments.output), weights.model)


FORMATS: Mapping[str, Format] = {
    "hf": checkpoint_huggingface.IMPORT,
    "megatron": Format("Megatron-LM, Megatron-DeepSpeed", _add_megatron_arguments, _megatron),
}


def main(argv: Sequence[str]) -> None:
    """Writes a checkpoint of ours with the weights of another program's.

    Args:
        argv: the command line after ``megatron-ds checkpoint import``.

    Raises:
        ConfigError: an option is wrong.
        CheckpointError: the input is missing, broken, or a model that ours can't express; or nothing can be written.
    """
    run_format(argv, "import", "--from", FORMATS, "Makes a checkpoint from weights of other programs.")
