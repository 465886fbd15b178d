"""What ``checkpoint export`` and ``checkpoint import`` share: one command, a table of formats."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.checkpoint.write import MODEL_PRESET_NAME
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.utils.logging import logger


@dataclass(frozen=True)
class Format:
    """One format of other programs.

    Attributes:
        help: what it is, in a few words.
        add_arguments: adds its own options.
        run: converts; gets ``input`` and ``output`` as paths, and its own options.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def add_step(parser: argparse.ArgumentParser) -> None:
    """``--step``, for formats that read a run of ours."""
    parser.add_argument("--step", type=int, metavar="N", help="which of the run's checkpoints; else the last one")


def tell_how_to_train_on(output: Path, model: ModelConfig) -> None:
    """Logs the options with which a run begins from a checkpoint of `model` that was written without an optimizer."""
    if model.output_head != "lm":
        logger.info("to finetune: finetune.py --task NAME --pretrained-checkpoint %s --save OTHER", output)
        return
    logger.info("to train on: --model-preset %s --load %s --finetune --save OTHER", output / MODEL_PRESET_NAME, output)


def run_format(argv: Sequence[str], command: str, flag: str, formats: Mapping[str, Format], description: str) -> None:
    """Parses a command line and converts.

    Args:
        argv: the command line after the command.
        command: its name, such as ``export``.
        flag: the option that names the format.
        formats: name → format.
        description: what the command does.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument(flag, dest="format")
    named = first.parse_known_args(argv)[0].format
    parser = argparse.ArgumentParser(
        f"megatron-ds checkpoint {command}",
        description=description,
        epilog=None if named in formats else f"{flag} NAME --help tells the options of a format.",
        allow_abbrev=False,
    )
    known = "; ".join(f"{name}: {format_.help}" for name, format_ in formats.items())
    parser.add_argument(flag, dest="format", required=True, choices=list(formats), help=known)
    parser.add_argument("--input", required=True, metavar="DIR", help="what is read")
    parser.add_argument("--output", required=True, metavar="DIR", help="what is written: a folder that is new or empty")
    if named in formats:
        formats[named].add_arguments(parser)
    arguments = parser.parse_args(argv)
    formats[arguments.format].run(arguments)
