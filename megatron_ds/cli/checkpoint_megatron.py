"""Options of Megatron's formats for ``checkpoint import --from megatron`` and ``checkpoint export``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.files import read_model_preset
from megatron_ds.errors import ConfigError, Problem

if TYPE_CHECKING:
    from megatron_ds.checkpoint.weights import ModelWeights


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that an import needs besides its input."""
    group = parser.add_argument_group("--from megatron")
    group.add_argument(
        "--model",
        metavar="FILE.json",
        help="architecture, a file like those in configs/models or the name of one: for files that don't say it; what "
        "they do say must agree. Its vocab_size cuts padding off",
    )
    group.add_argument(
        "--average-copies",
        action="store_true",
        help="take the mean where tensor-parallel ranks hold different copies of a parameter (BLOOM's norms drifted "
        "apart), instead of stopping with an error",
    )


def run_import(arguments: argparse.Namespace) -> ModelWeights:
    """The weights in the folder ``--input``.

    Raises:
        ConfigError: the file of ``--model`` is wrong.
        CheckpointError: the folder can't be imported.
    """
    from megatron_ds.checkpoint.megatron import import_megatron

    model = None if arguments.model is None else read_model(arguments.model)
    return import_megatron(Path(arguments.input), model, average_copies=arguments.average_copies)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that an export needs besides its input and output."""
    group = parser.add_argument_group("--format megatron")
    group.add_argument(
        "--layout",
        choices=("core", "classic", "bloom", "microsoft"),
        default="core",
        help="whose models load it: Megatron core's (default), those before core, or the pipelines of the "
        "Megatron-DeepSpeed fork of BLOOM or of Microsoft",
    )
    group.add_argument("--target-tp", type=_size, default=1, metavar="N", help="tensor-parallel size of the files (1)")
    group.add_argument("--target-pp", type=_size, default=1, metavar="N", help="pipeline stages of the files (1)")
    group.add_argument(
        "--checkpoint-version",
        type=float,
        choices=(0.0, 1.0, 2.0, 3.0),
        default=3.0,
        help="order of queries, keys and values, for old code; 0 to 2 with --layout classic only (3)",
    )
    group.add_argument(
        "--transformer-impl",
        choices=("transformer_engine", "local"),
        default="transformer_engine",
        help="core: whose layers load it; they name norms differently (transformer_engine)",
    )


def run_export(weights: ModelWeights, arguments: argparse.Namespace, iteration: int = 0) -> None:
    """Writes the weights to the folder ``--output``.

    Args:
        weights: of the model.
        arguments: the command line.
        iteration: step that the weights are of.

    Raises:
        ConfigError: the layout can't express the model.
        CheckpointError: the folder can't be written.
    """
    from megatron_ds.checkpoint.megatron import export_megatron

    export_megatron(
        weights,
        Path(arguments.output),
        tp_size=arguments.target_tp,
        pp_size=arguments.target_pp,
        layout=arguments.layout,
        checkpoint_version=arguments.checkpoint_version,
        transformer_impl=arguments.transformer_impl,
        iteration=iteration,
    )


def read_model(name: str) -> ModelConfig:
    """The architecture in a preset file.

    Args:
        name: a path, or the bare name of a file in configs/models.

    Raises:
        ConfigError: there is no such file, or it has options that are wrong: one problem for each.
    """
    file = read_model_preset(name, "--model")
    try:
        return ModelConfig(**file.content)
    except ValidationError as error:
        raise ConfigError(
            Problem(f"--model {file.label}: {'.'.join(map(str, one['loc']))}: {one['msg']}") for one in error.errors()
        ) from None


def _size(text: str) -> int:
    size = int(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{size} is below 1")
    return size
