"""What `generate` and `evaluate` share: a checkpoint's model and tokenizer, before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint import find_checkpoint
from megatron_ds.checkpoint.manifest import Manifest
from megatron_ds.cli.numbers import at_least_one, at_least_zero
from megatron_ds.cli.option_flags import add_option
from megatron_ds.config.blocks import DataConfig, ModelConfig
from megatron_ds.config.catalog import all_options
from megatron_ds.config.layout import layout_problems
from megatron_ds.config.rules.common import PP, TP
from megatron_ds.config.settings import Given
from megatron_ds.errors import CheckpointError, ConfigError, Problem, Source
from megatron_ds.tokenizers import Tokenizer, build_tokenizer

TOKENIZER_OPTIONS = tuple(
    f"data.{name}"
    for name in (
        *("tokenizer_type", "tokenizer_name_or_path", "tokenizer_model", "vocab_file", "merge_file"),
        *("vocab_extra_ids", "eod_id"),
    )
)
LAYOUT_OPTIONS = (TP, PP)
_IMPORT = "; models of Hugging Face and Megatron-LM are imported first: megatron-ds checkpoint import"


@dataclass(frozen=True)
class NamedCheckpoint:
    """What is read of a checkpoint's manifest.

    Attributes:
        folder: the checkpoint's own.
        manifest: all of it.
        model: the architecture.
        data: the options that choose a tokenizer, and the others.
    """

    folder: Path
    manifest: Manifest
    model: ModelConfig
    data: DataConfig

    @property
    def precision(self) -> str:
        """That it was trained in."""
        return self.manifest.layout.precision

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"the checkpoint {self.folder}"


def add_load_options(command: argparse.ArgumentParser) -> None:
    """Adds the options that name the checkpoint."""
    command.add_argument("--load", type=Path, required=True, metavar="DIR", help="folder of a run: what --save wrote")
    command.add_argument(
        "--load-step", type=at_least_zero, metavar="N", help="load global_step<N> instead of the latest checkpoint"
    )


def add_batch_size(command: argparse.ArgumentParser) -> None:
    """Adds the number of texts that run together."""
    command.add_argument(
        "--batch-size", type=at_least_one, default=8, metavar="N", help="texts of a replica at the same time (8)"
    )


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of precision, layout and tokenizer."""
    layout = command.add_argument_group("model")
    layout.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), help="of weights and computing (that of the training)"
    )
    for path in LAYOUT_OPTIONS:
        add_option(layout, path)
    tokenizer = command.add_argument_group("tokenizer, where it is not the one that the checkpoint names")
    for path in TOKENIZER_OPTIONS:
        add_option(tokenizer, path)


def given_layout(arguments: argparse.Namespace) -> dict[str, Given]:
    """The sizes of the layout, by path, with where they come from."""
    return {path: _given(arguments, path) for path in LAYOUT_OPTIONS}


def problems_of_layout(arguments: argparse.Namespace, checkpoint: NamedCheckpoint, processes: Given) -> list[Problem]:
    """Why the checkpoint's model can't be spread over the processes as the flags ask.

    Args:
        arguments: with the options of `add_model_options`.
        checkpoint: the checkpoint.
        processes: their number.
    """
    return layout_problems(checkpoint.model, checkpoint.label, given_layout(arguments), processes)


def _given(arguments: argparse.Namespace, path: str) -> Given:
    option = all_options()[path]
    value = getattr(arguments, option.name)
    return Given(option.default, "default") if value is None else Given(value, option.flag)


def read_checkpoint(arguments: argparse.Namespace) -> NamedCheckpoint:
    """The manifest of the checkpoint that the flags name.

    Raises:
        CheckpointError: there is no such checkpoint, or it is of no model that this version knows.
    """
    found = find_checkpoint(arguments.load, arguments.load_step, otherwise=_IMPORT)
    manifest, folder = found.manifest, found.folder / found.tag
    label = f"the checkpoint {folder}"
    options = manifest.options.get("data", {})
    try:
        model = ModelConfig(**manifest.model)
        # Options of other versions don't concern the tokenizer.
        data = DataConfig(**{name: options[name] for name in DataConfig.model_fields if name in options})
    except (ValueError, TypeError) as error:
        message = f"the manifest of {label} describes no model that this version knows: {error}"
        raise CheckpointError(Problem(message, advice="use the version that saved it")) from error
    return NamedCheckpoint(folder, manifest, model, data)


def find_tokenizer(arguments: argparse.Namespace, checkpoint: NamedCheckpoint) -> tuple[Tokenizer, int | None]:
    """The tokenizer that the flags or the checkpoint name, and the id that ends a document.

    Args:
        arguments: with the options of `add_model_options`.
        checkpoint: the checkpoint.

    Raises:
        MegatronDsError: there is none, its files are not there, or it has more ids than the model.
    """
    given: dict[str, Any] = {
        name: value
        for name in (path.partition(".")[2] for path in TOKENIZER_OPTIONS)
        if (value := getattr(arguments, name)) is not None
    }
    data, vocab_size = checkpoint.data.model_copy(update=given), checkpoint.model.vocab_size
    if data.tokenizer_type is None:
        advice = "give --tokenizer-type and its files, those that the data was preprocessed with"
        raise ConfigError(Problem(f"{checkpoint.label} names no tokenizer", advice=advice))
    tokenizer = build_tokenizer(data, vocab_size=vocab_size)
    if vocab_size is None or tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            Problem(
                f"the tokenizer has {tokenizer.vocab_size} ids, and the model {vocab_size}: it is not the model's",
                (
                    Source(
                        "tokenizer_type",
                        data.tokenizer_type,
                        "--tokenizer-type" if "tokenizer_type" in given else checkpoint.label,
                    ),
                    Source("vocab_size", str(vocab_size), checkpoint.label),
                ),
                "give the tokenizer that the data was preprocessed with",
            )
        )
    eod_id = data.eod_id if "eod_id" in given or tokenizer.eod_id is None else tokenizer.eod_id
    if eod_id is not None and eod_id >= vocab_size:
        source = Source("eod_id", str(eod_id), "--eod-id" if "eod_id" in given else checkpoint.label)
        message = f"eod_id {eod_id} is outside of the vocabulary of {vocab_size} ids"
        raise ConfigError(Problem(message, (source,), f"use an id below {vocab_size}"))
    return tokenizer, eod_id


def output_problems(output: Path | None, inputs: Mapping[str, Path | None]) -> list[Problem]:
    """Why nothing could be written to the file of ``--output``.

    Args:
        output: the file.
        inputs: files that must not be written over, by what they are.
    """
    if output is None:
        return []
    if output.is_dir() or not output.absolute().parent.is_dir():
        what = "is a folder" if output.is_dir() else "can't be written: its folder does not exist"
        return [Problem(f"--output {output} {what}", advice="give the name of a file in a folder that exists")]
    return [
        Problem(f"--output {output} is {what}", advice="give another name")
        for what, file in inputs.items()
        if file is not None and output.resolve() == file.resolve()
    ]


def refuse_existing(output: Path | None) -> None:
    """Ends the first process where the file of ``--output`` is there already.

    Raises:
        CheckpointError: it is.
    """
    # A device such as /dev/stdout may be written to again.
    if output is not None and output.is_file():
        raise CheckpointError(Problem(f"{output} is there already", advice="give another name, or remove it"))
