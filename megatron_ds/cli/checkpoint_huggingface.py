"""Export to and import from Hugging Face's transformers, as commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megatron_ds.checkpoint.apart import check_apart
from megatron_ds.checkpoint.huggingface import (
    ARCHITECTURES,
    KEPT_FOLDER,
    check_difference,
    check_ids,
    compare_logits,
    export_huggingface,
    has_tokenizer,
    import_huggingface,
    own_tokenizer,
)
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.checkpoint.write import write_checkpoint
from megatron_ds.cli.checkpoint_formats import Format, add_step, tell_how_to_train_on
from megatron_ds.cli.weights_progress import with_progress
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.utils.logging import logger

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _num_bytes(text: str) -> int:
    """``5GB``, ``500MB``, ``4GiB`` or a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", text.strip().upper())
    num_bytes = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if num_bytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 5GB, 500MB, 4GiB or a number of bytes")
    return num_bytes


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_step(parser)
    parser.add_argument(
        "--architecture",
        choices=list(ARCHITECTURES),
        help="class of transformers to write; when not given, the first that can express the model",
    )
    parser.add_argument("--dtype", choices=list(COMPUTE_DTYPES), help="dtype of the weights; theirs when not given")
    parser.add_argument(
        "--max-shard-size", type=_num_bytes, default="5GB", metavar="SIZE", help="most bytes of one file (5GB)"
    )
    _add_check(parser)


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=list(COMPUTE_DTYPES), help="dtype of the weights; theirs when not given")
    _add_check(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare logits on random tokens, and ids of a few texts, with transformers; holds both models in memory, "
        "in fp32",
    )


def _export(arguments: argparse.Namespace) -> None:
    reader = open_checkpoint(Path(arguments.input), arguments.step)
    check_apart(Path(arguments.output), reader.folder)
    # An optimizer has more digits than a bf16 model.
    wants_digits = arguments.dtype in ("fp32", "fp16") and reader.has_optimizer
    output, weights = Path(arguments.output), reader.weights("fp32" if wants_digits else "weights")
    with with_progress(weights, "export") as followed:
        exported = export_huggingface(
            followed,
            output,
            data=reader.manifest.options.get("data", {}),
            kept=reader.folder.parent / KEPT_FOLDER,
            architecture=arguments.architecture,
            dtype=COMPUTE_DTYPES.get(arguments.dtype),
            max_shard_bytes=arguments.max_shard_size,
        )
    logger.info(
        "%s: %s, %s in %d file(s)",
        output,
        exported.architecture.name,
        str(exported.dtype).removeprefix("torch."),
        len(exported.files),
    )
    if exported.why_no_tokenizer is not None:
        logger.warning("no tokenizer was written: %s", exported.why_no_tokenizer)
    if arguments.check:
        _check(weights, output, exported.dtype, reader.manifest.options.get("data", {}))


def _import(arguments: argparse.Namespace) -> None:
    source, output = Path(arguments.input), Path(arguments.output)
    check_apart(output, source)
    imported = import_huggingface(source).in_dtype(COMPUTE_DTYPES.get(arguments.dtype))
    kept = output.absolute() / KEPT_FOLDER
    precision = next(name for name, dtype in COMPUTE_DTYPES.items() if dtype == imported.dtype)
    with with_progress(imported.weights, "import") as followed:
        write_checkpoint(output, followed, options={"data": imported.data_options(kept)}, precision=precision)
    imported.keep(kept)
    logger.info(
        "%s: from %s, %s, vocab_size %d (the rows of its embeddings, which may be more than the tokenizer has ids)",
        output,
        imported.architecture.name,
        precision,
        imported.weights.model.vocab_size,
    )
    tell_how_to_train_on(output, imported.weights.model)
    if arguments.check:
        # What was written, not what was read.
        written = open_checkpoint(output)
        _check(written.weights(), source, imported.dtype, written.manifest.options["data"])


def _check(weights: ModelWeights, folder: Path, dtype: torch.dtype, data: Mapping[str, Any]) -> None:
    comparison = compare_logits(weights, folder, dtype)
    logger.info(
        "largest |Δlogit| %.3g on %d random tokens, in fp32 (largest |logit| %.3g)",
        comparison.largest_difference,
        comparison.num_tokens,
        comparison.largest_logit,
    )
    check_difference(comparison)
    tokenizer = own_tokenizer(data, folder)
    if tokenizer is not None and has_tokenizer(folder):
        logger.info("%d texts have the same ids", check_ids(tokenizer, folder))


EXPORT = Format("Hugging Face transformers", _add_export_arguments, _export)
IMPORT = Format("Hugging Face transformers", _add_import_arguments, _import)
