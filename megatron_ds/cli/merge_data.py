"""``megatron-ds merge-data``: several pairs of token files to one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from megatron_ds.cli.token_files import folders_in_the_way, named_io_errors, tell_of_leftovers
from megatron_ds.data.indexed_dataset import IndexedDataset, IndexedDatasetBuilder, bin_path
from megatron_ds.data.token_info import (
    TokenInfo,
    info_path,
    merge_token_infos,
    put_pairs_in_place,
    read_token_info,
)
from megatron_ds.errors import ConfigError, DataError, MegatronDsError, Problem
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted


def main(argv: Sequence[str]) -> None:
    """Writes one ``.bin``/``.idx`` pair with the documents of all inputs, in the order given.

    The result has the bytes that preprocessing the concatenated texts would have written, in the ``.json`` beside it
    too. That is written when all inputs have one.

    Args:
        argv: the command line after ``megatron-ds merge-data``.

    Raises:
        ConfigError: an option is wrong.
        DataError: an input is missing or broken, they were made with different tokenizers or options, the dtypes
            differ, or the disk is full. Nothing stays behind.
    """
    parser = argparse.ArgumentParser(
        "megatron-ds merge-data", description="Joins token files, in the order given.", allow_abbrev=False
    )
    parser.add_argument("--input", nargs="+", required=True, metavar="PREFIX", help="paths without .bin and .idx")
    parser.add_argument("--output-prefix", required=True, help="path of the output without .bin and .idx")
    arguments = parser.parse_args(argv)
    with named_io_errors(arguments.output_prefix):
        _check_output(arguments.input, arguments.output_prefix)
        inputs = _open_all(arguments.input)
        info = merge_token_infos(_read_infos(inputs))
        _check_dtypes(inputs)
        tell_of_leftovers([arguments.output_prefix])
        builder = IndexedDatasetBuilder(arguments.output_prefix, inputs[0].dtype)
        try:
            for indexed in inputs:
                builder.add_dataset(indexed)
            put_pairs_in_place([(builder, info)])
        finally:
            builder.abort()
    logger.info("%s: %s", builder.prefix, builder.size_text())


def _check_output(prefixes: Sequence[str], output_prefix: str) -> None:
    output = bin_path(output_prefix).resolve()
    problems = [
        Problem(f"give the prefix without the suffix: {prefix[:-4]}, not {prefix}")
        for prefix in dict.fromkeys([*prefixes, output_prefix])
        if prefix.endswith((".bin", ".idx"))
    ]
    if output in [bin_path(prefix).resolve() for prefix in prefixes]:
        problems.append(
            Problem(f"--output-prefix {output_prefix} is one of the inputs", advice="write to another prefix")
        )
    if Path(output_prefix).is_dir():
        problems.append(Problem(f"--output-prefix {output_prefix} is a folder", advice="add the name of the new files"))
    problems += folders_in_the_way([output_prefix])
    if problems:
        raise ConfigError(problems)


def _open_all(prefixes: Sequence[str]) -> list[IndexedDataset]:
    """Opens and checks every input; one error has the problems of all of them."""
    opened: dict[str, IndexedDataset] = {}
    problems: list[Problem] = []
    for prefix in dict.fromkeys(prefixes):
        try:
            opened[prefix] = IndexedDataset(prefix)
            opened[prefix].check_index()
        except MegatronDsError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return [opened[prefix] for prefix in prefixes]


def _read_infos(inputs: Sequence[IndexedDataset]) -> list[tuple[str, TokenInfo | None]]:
    infos = [(indexed.prefix, read_token_info(indexed.prefix)) for indexed in inputs]
    for indexed, (prefix, info) in zip(inputs, infos, strict=True):
        if info is not None and (info.documents, info.tokens) != (indexed.num_documents, indexed.num_tokens):
            found = f"says {counted(info.documents, 'document')} and {counted(info.tokens, 'token')}"
            has = f"{prefix}.bin and .idx have {indexed.num_documents} and {indexed.num_tokens}"
            raise DataError(
                Problem(
                    f"{info_path(prefix)} {found}, {has}",
                    advice="remove the .json if another tool wrote the two files, or preprocess the data again",
                )
            )
    unknown = [prefix for prefix, info in infos if info is None]
    if unknown and len(unknown) < len(infos):
        logger.warning("%s has no .json that names its tokenizer, so the merged files have none", unknown[0])
    return infos


def _check_dtypes(inputs: Sequence[IndexedDataset]) -> None:
    first = inputs[0]
    for other in inputs:
        if other.dtype != first.dtype:
            raise DataError(
                Problem(
                    f"{first.prefix} has {first.dtype} tokens and {other.prefix} has {other.dtype}; "
                    "files of two dtypes can't be merged",
                    advice="preprocess both with the same tokenizer, or train on both as a blend (--data-path)",
                )
            )
