"""``megatron-ds preprocess``: text files to token files."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.cli.numbers import at_least_one, at_least_zero
from megatron_ds.cli.other_flags import refuse_other_flags
from megatron_ds.cli.preprocess_report import no_text, report, tell_of_earlier
from megatron_ds.cli.progress import Progress
from megatron_ds.cli.token_files import files_of, folders_in_the_way, named_io_errors
from megatron_ds.data.encode import EncodeOptions
from megatron_ds.data.hugging_face import DatasetChoice
from megatron_ds.data.indexed_format import token_dtype
from megatron_ds.data.input_files import FORMATS, InputFile, find_inputs
from megatron_ds.data.partitions import ReadOptions, add_partitions, plan_partitions, read_and_add
from megatron_ds.data.replace_files import temporary_suffix
from megatron_ds.data.sentences import SentenceSplitter, find_language
from megatron_ds.data.token_info import TokenInfo
from megatron_ds.data.write_tokens import Builders, Totals, described_pairs_to_write
from megatron_ds.errors import ConfigError, DataError, Problem
from megatron_ds.tokenizers import BACKENDS, Tokenizer, build_tokenizer, with_backend
from megatron_ds.utils.logging import logger

# Large enough that passing a batch to a worker costs little, small enough that two dozen in flight are nothing.
BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class TokenizerFlags:
    """The tokenizer as the command line names it; see `megatron_ds.tokenizers.TokenizerOptions`."""

    tokenizer_type: str | None
    tokenizer_name_or_path: str | None
    tokenizer_model: str | None
    vocab_file: str | None
    merge_file: str | None
    vocab_extra_ids: int


def main(argv: Sequence[str]) -> None:
    """Writes ``<prefix>_<key>_document.bin`` and ``.idx`` for each JSON key; ``_sentence`` when sentences are split.

    Args:
        argv: the command line after ``megatron-ds preprocess``.

    Raises:
        ConfigError: an option or an input file is wrong. Nothing was read.
        DataError: a line is bad, there is no text at all, or the disk is full. Nothing stays behind.
    """
    parser = preprocess_parser()
    refuse_other_flags(parser, argv)
    arguments = parser.parse_args(argv)
    splitter = _splitter(arguments)
    choice = _dataset_choice(arguments)
    keys = _keys(arguments.json_keys)
    files = find_inputs(arguments.input, arguments.input_format)
    level = "sentence" if splitter else "document"
    prefixes = {key: f"{arguments.output_prefix}_{key}_{level}" for key in keys}
    with named_io_errors(arguments.output_prefix):
        _check_output(tuple(prefixes.values()), _files_read(arguments, files))
    tokenizer_flags = TokenizerFlags(
        arguments.tokenizer_type,
        arguments.tokenizer_name_or_path,
        arguments.tokenizer_model,
        arguments.vocab_file,
        arguments.merge_file,
        arguments.vocab_extra_ids,
    )
    plain_tokenizer = build_tokenizer(tokenizer_flags, vocab_size=arguments.vocab_size)
    backend = _backend(arguments)
    tokenizer, backend_note = with_backend(plain_tokenizer, backend)
    if backend_note:
        logger.info("tokenizer: %s", backend_note)
    _check_eod(tokenizer, arguments.append_eod)
    options = EncodeOptions(
        tokenizer_flags,
        arguments.vocab_size,
        keys,
        arguments.append_eod,
        skip_bad=arguments.skip_bad_lines,
        splitter=splitter,
        allow_special=arguments.allow_special_tokens,
        backend=backend,
    )
    _check_partitions(arguments.partitions, arguments.workers, files)
    job = _Job(
        tuple(files), ReadOptions(options, choice, BATCH_BYTES), tokenizer, arguments.workers, arguments.partitions
    )
    with named_io_errors(arguments.output_prefix):
        progress = Progress(_total_bytes(files), arguments.log_interval, arguments.log_interval_seconds)
        _write(job, arguments.output_prefix, prefixes, progress)


def preprocess_parser() -> argparse.ArgumentParser:
    """The options of ``megatron-ds preprocess``."""
    parser = argparse.ArgumentParser(
        "megatron-ds preprocess", description="Turns texts into token files.", allow_abbrev=False
    )
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="files or quoted patterns")
    parser.add_argument(
        "--input-format",
        choices=FORMATS,
        help="format of all files (by suffix; jsonl, one object per line, else); "
        "hf: --input names datasets of Hugging Face, as folders or on the hub",
    )
    parser.add_argument(
        "--dataset-config", metavar="NAME", help="with --input-format hf: the configuration (its default one)"
    )
    parser.add_argument("--dataset-split", metavar="NAME", help="with --input-format hf: the split (train)")
    parser.add_argument("--output-prefix", required=True, help="path of the output without _<key>_document.bin")
    parser.add_argument(
        "--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys or columns with text (text)"
    )
    parser.add_argument("--split-sentences", action="store_true", help="make each sentence a sequence, for BERT and T5")
    parser.add_argument(
        "--lang", "--language", metavar="LANG", help="with --split-sentences: code or name of the language (english)"
    )
    parser.add_argument(
        "--keep-newlines",
        action="store_true",
        help="with --split-sentences: keep the white space between sentences, at the end of the one before it",
    )
    parser.add_argument("--append-eod", action="store_true", help="end each document with the end-of-document id")
    parser.add_argument("--skip-bad-lines", action="store_true", help="leave bad lines out and count them")
    parser.add_argument("--workers", type=at_least_one, default=_num_cores(), help="processes (all cores)")
    parser.add_argument(
        "--partitions",
        type=at_least_one,
        default=1,
        help="parts of the input that are read at the same time, sharing the workers (1); same files as with 1",
    )
    parser.add_argument(
        "--log-interval", type=at_least_one, default=1000, help="documents between updates of the progress (1000)"
    )
    parser.add_argument(
        "--log-interval-seconds",
        type=at_least_zero,
        default=10,
        help="least time between two lines of progress where there is no terminal (10)",
    )
    # Scripts for Megatron say it; there is nothing else to choose.
    parser.add_argument("--dataset-impl", choices=["mmap"], default="mmap", help=argparse.SUPPRESS)
    group = parser.add_argument_group("tokenizer")
    group.add_argument(
        "--tokenizer-type",
        metavar="TYPE",
        help="HFTokenizer, GPT2BPETokenizer, SentencePieceTokenizer, BertWordPieceLowerCase, BertWordPieceCase, "
        "ByteTokenizer or NullTokenizer",
    )
    group.add_argument("--tokenizer-name-or-path", "--tokenizer-name", help="HFTokenizer: a folder, file or hub name")
    group.add_argument("--tokenizer-model", help="SentencePieceTokenizer: the .model file")
    group.add_argument("--vocab-file", help="GPT2BPETokenizer: vocab.json; BertWordPiece…: vocab.txt")
    group.add_argument("--merge-file", "--merges-file", help="GPT2BPETokenizer: merges.txt")
    group.add_argument("--vocab-size", type=at_least_one, help="NullTokenizer: number of ids")
    group.add_argument(
        "--vocab-extra-ids",
        type=at_least_zero,
        default=0,
        metavar="N",
        help="sentinels <extra_id_0> … for T5 that get ids after the vocabulary (0)",
    )
    group.add_argument(
        "--tokenizer-backend",
        choices=BACKENDS,
        default="auto",
        help="library that encodes: auto takes gigatoken where it is installed and proven to give the same ids (auto)",
    )
    group.add_argument(
        "--allow-special-tokens",
        action="store_true",
        help="give the string of a special token in a document its one id; otherwise it is plain text",
    )
    return parser


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _splitter(arguments: argparse.Namespace) -> SentenceSplitter | None:
    if arguments.split_sentences:
        return SentenceSplitter(find_language(arguments.lang or "english"), arguments.keep_newlines)
    _refuse_given({"--lang": arguments.lang, "--keep-newlines": arguments.keep_newlines}, "--split-sentences")
    return None


def _dataset_choice(arguments: argparse.Namespace) -> DatasetChoice:
    if arguments.input_format != "hf":
        given = {"--dataset-config": arguments.dataset_config, "--dataset-split": arguments.dataset_split}
        _refuse_given(given, "--input-format hf")
    return DatasetChoice(arguments.dataset_config, arguments.dataset_split)


def _refuse_given(values: Mapping[str, object], needed: str) -> None:
    """Refuses flags that were given, as they say nothing without the one that is needed."""
    problems = [
        Problem(f"{flag} is given without {needed}", advice=f"add {needed}, or leave {flag} out")
        for flag, value in values.items()
        if value
    ]
    if problems:
        raise ConfigError(problems)


def _backend(arguments: argparse.Namespace) -> str:
    backend: str = arguments.tokenizer_backend
    if not arguments.allow_special_tokens:
        return backend
    if backend == "gigatoken":
        raise ConfigError(
            Problem(
                "--tokenizer-backend gigatoken and --allow-special-tokens are both given: special tokens in documents "
                "are found by tokenizers only",
                advice="leave one of the two out",
            )
        )
    return "tokenizers"


def _check_eod(tokenizer: Tokenizer, append_eod: bool) -> None:
    if append_eod and tokenizer.eod_id is None:
        raise ConfigError(
            Problem(
                "--append-eod is given, and the tokenizer has no end-of-document token",
                advice="use a tokenizer that has one (HFTokenizer: name an eos_token in tokenizer_config.json beside "
                "tokenizer.json), or leave --append-eod out",
            )
        )


def _keys(names: Sequence[str]) -> tuple[str, ...]:
    """The keys, each once.

    Raises:
        ConfigError: one can't be a part of a file's name.
    """
    keys = tuple(dict.fromkeys(names))
    problems = [
        Problem(
            f"--json-keys {key!r} has a '/', and the names of the files are made of the keys",
            advice="give the key or column another name in the input",
        )
        for key in keys
        if "/" in key
    ]
    if problems:
        raise ConfigError(problems)
    return keys


def _files_read(arguments: argparse.Namespace, files: Sequence[InputFile]) -> list[Path]:
    """All files that a run reads."""
    names = (
        arguments.tokenizer_name_or_path,
        arguments.tokenizer_model,
        arguments.vocab_file,
        arguments.merge_file,
    )
    return [*(file.path for file in files), *(Path(name) for name in names if name is not None)]


def _check_output(prefixes: Sequence[str], files_read: Sequence[Path]) -> None:
    """Refuses to write where the run reads, in whatever way the two are named.

    Raises:
        ConfigError: an output is an input, or there is a folder in its place.
    """
    read = {os.path.realpath(path): path for path in files_read}
    problems = folders_in_the_way(prefixes)
    for path in (path for prefix in prefixes for path in files_of(prefix)):
        if (same := read.get(os.path.realpath(path))) is not None:
            problems.append(
                Problem(
                    f"{path}, which is to be written, is what is read: {same}",
                    advice="give another --output-prefix",
                )
            )
    if problems:
        raise ConfigError(problems)


def _total_bytes(files: Sequence[InputFile]) -> int | None:
    """Bytes of text; None for packed files: how much is in them is known when they have been read."""
    if any(file.is_packed for file in files):
        return None
    return sum(file.num_bytes for file in files)


def _check_partitions(partitions: int, workers: int, files: Sequence[InputFile]) -> None:
    problems = []
    if workers < partitions:
        problems.append(
            Problem(
                f"--partitions {partitions} need a process each, and --workers is {workers}",
                advice=f"give --workers {partitions} or more, or fewer partitions",
            )
        )
    if partitions > 1 and any(file.format == "hf" for file in files):
        problems.append(Problem("--partitions is given, and a dataset can't be cut", advice="leave --partitions out"))
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class _Job:
    """What is to be read, how, and by how many processes."""

    files: tuple[InputFile, ...]
    options: ReadOptions
    tokenizer: Tokenizer
    workers: int
    partitions: int

    @property
    def encode(self) -> EncodeOptions:
        return self.options.encode

    def info(self) -> TokenInfo:
        """What all files are made with."""
        assert self.encode.tokenizer.tokenizer_type is not None, "a tokenizer was built from it"
        splitter = self.encode.splitter
        return TokenInfo(
            tokenizer_type=self.encode.tokenizer.tokenizer_type,
            fingerprint=self.tokenizer.fingerprint,
            vocab_size=self.tokenizer.vocab_size,
            eod_id=self.tokenizer.eod_id,
            append_eod=self.encode.append_eod,
            keys=(),
            split_sentences=splitter is not None,
            language=splitter.language if splitter else None,
            keep_newlines=splitter.keep_newlines if splitter else False,
            allow_special_tokens=self.encode.allow_special,
            documents=0,
            tokens=0,
        )


def _write(job: _Job, output_prefix: str, prefixes: Mapping[str, str], progress: Progress) -> None:
    start = time.perf_counter()
    tell_of_earlier(output_prefix, tuple(prefixes.values()))
    dtype = token_dtype(job.tokenizer.vocab_size)
    with progress, described_pairs_to_write(prefixes, dtype, job.info()) as builders:
        totals = _read(job, Path(f"{output_prefix}{temporary_suffix('part')}"), builders, progress)
        for key, builder in builders.items():
            if builder.num_documents == 0:
                raise DataError(no_text(key, totals))
    report(builders, totals, time.perf_counter() - start)


def _read(job: _Job, folder: Path, builders: Builders, progress: Progress) -> Totals:
    if job.partitions > 1:
        partitions = plan_partitions(job.files, job.partitions, job.workers)
        if len(partitions) < job.partitions:
            logger.warning("the input is cut into %d partitions: only JSON lines can be cut", len(partitions))
        return add_partitions(partitions, job.options, job.tokenizer, folder, builders, progress.add)
    return read_and_add(job.files, job.options, job.tokenizer, job.workers, builders, progress.add)
