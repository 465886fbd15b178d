"""``megatron-ds preprocess``: text files to token files."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from megatron_ds.cli.token_files import named_io_errors
from megatron_ds.data.encode import EncodedBatch, EncodeOptions, encode_in_order
from megatron_ds.data.hugging_face import DatasetChoice
from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.data.indexed_format import token_dtype
from megatron_ds.data.input_files import FORMATS, find_inputs
from megatron_ds.data.read_inputs import read_batches
from megatron_ds.data.sentences import SentenceSplitter, find_language
from megatron_ds.data.token_info import TokenInfo, remove_token_info, write_token_info
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


class _QuietBar(tqdm):  # type: ignore[misc]
    """A progress bar without tqdm's monitor thread: worker processes are forked from this one."""

    monitor_interval = 0


def main(argv: Sequence[str]) -> None:
    """Writes ``<prefix>_<key>_document.bin`` and ``.idx`` for each JSON key; ``_sentence`` when sentences are split.

    Args:
        argv: the command line after ``megatron-ds preprocess``.

    Raises:
        ConfigError: an option or an input file is wrong. Nothing was read.
        DataError: a line is bad, there is no text at all, or the disk is full. Nothing stays behind.
    """
    arguments = _parser().parse_args(argv)
    splitter = _splitter(arguments)
    choice = _dataset_choice(arguments)
    files = find_inputs(arguments.input, arguments.input_format)
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
    keys = tuple(dict.fromkeys(arguments.json_keys))
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
    inputs = read_batches(files, keys, BATCH_BYTES, choice)
    batches = encode_in_order(inputs, options, tokenizer, arguments.workers)
    # How much text is in a packed file is known when it has been read.
    is_packed = any(file.is_packed for file in files)
    total_bytes = None if is_packed else sum(file.path.stat().st_size for file in files)
    progress = _with_progress(batches, total_bytes, arguments.log_interval)
    with named_io_errors(arguments.output_prefix):
        _write(progress, arguments.output_prefix, options, tokenizer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("megatron-ds preprocess", description="Turns texts into token files.")
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
    parser.add_argument("--workers", type=_at_least_one, default=_num_cores(), help="processes (all cores)")
    parser.add_argument(
        "--log-interval", type=_at_least_one, default=1000, help="lines between updates of the bar (1000)"
    )
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
    group.add_argument("--vocab-size", type=_at_least_one, help="NullTokenizer: number of ids")
    group.add_argument(
        "--vocab-extra-ids",
        type=_at_least_zero,
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


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _at_least_zero(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _splitter(arguments: argparse.Namespace) -> SentenceSplitter | None:
    if arguments.split_sentences:
        return SentenceSplitter(find_language(arguments.lang or "english"), arguments.keep_newlines)
    given = {"--lang": arguments.lang, "--keep-newlines": arguments.keep_newlines}
    problems = [
        Problem(f"{flag} is given without --split-sentences", advice=f"add --split-sentences, or leave {flag} out")
        for flag, value in given.items()
        if value
    ]
    if problems:
        raise ConfigError(problems)
    return None


def _dataset_choice(arguments: argparse.Namespace) -> DatasetChoice:
    if arguments.input_format != "hf":
        given = {"--dataset-config": arguments.dataset_config, "--dataset-split": arguments.dataset_split}
        problems = [
            Problem(f"{flag} is given without --input-format hf", advice=f"add --input-format hf, or leave {flag} out")
            for flag, value in given.items()
            if value
        ]
        if problems:
            raise ConfigError(problems)
    return DatasetChoice(arguments.dataset_config, arguments.dataset_split)


def _backend(arguments: argparse.Namespace) -> str:
    backend: str = arguments.tokenizer_backend
    if not arguments.allow_special_tokens:
        return backend
    if backend == "gigatoken":
        raise ConfigError(
            Problem(
                "--tokenizer-backend gigatoken and --allow-special-tokens are both given: only tokenizers finds "
                "special tokens in documents",
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


def _with_progress(batches: Iterator[EncodedBatch], total_bytes: int | None, interval: int) -> Iterator[EncodedBatch]:
    num_lines = num_bytes = 0
    # On a terminal only: a log file has no use for a bar.
    with _QuietBar(
        total=total_bytes, unit="B", unit_scale=True, disable=None, file=sys.stderr, desc="preprocess"
    ) as bar:
        for batch in batches:
            yield batch
            num_lines += batch.num_lines
            num_bytes += batch.num_bytes
            if num_lines >= interval:
                bar.update(num_bytes)
                num_lines = num_bytes = 0
        bar.update(num_bytes)


@dataclass
class _Totals:
    """What a run has read and left out."""

    num_bytes: int = 0
    num_lines: int = 0
    num_empty: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""

    def add(self, batch: EncodedBatch) -> None:
        self.num_bytes += batch.num_bytes
        self.num_lines += batch.num_lines
        self.num_empty.update({key: documents.num_empty for key, documents in batch.documents.items()})
        self.bad.update(batch.bad)
        self.first_bad = self.first_bad or batch.first_bad


def _write(batches: Iterator[EncodedBatch], output_prefix: str, options: EncodeOptions, tokenizer: Tokenizer) -> None:
    start = time.perf_counter()
    totals = _Totals()
    level = "sentence" if options.splitter else "document"
    with ExitStack() as stack:
        builders = {
            key: stack.enter_context(
                IndexedDatasetBuilder(f"{output_prefix}_{key}_{level}", token_dtype(tokenizer.vocab_size))
            )
            for key in options.keys
        }
        for batch in batches:
            totals.add(batch)
            for key, documents in batch.documents.items():
                builders[key].add_documents(documents.tokens, documents.lengths, documents.sequences)
        for key, builder in builders.items():
            if builder.num_documents == 0:
                raise DataError(_no_text(key, totals))
        # No key's files are replaced before those of all keys are written.
        for builder in builders.values():
            builder.prepare()
        for builder in builders.values():
            remove_token_info(builder.prefix)
    for key, builder in builders.items():
        write_token_info(builder.prefix, _info(builder, key, options, tokenizer))
    _report(builders, totals, time.perf_counter() - start)


def _info(builder: IndexedDatasetBuilder, key: str, options: EncodeOptions, tokenizer: Tokenizer) -> TokenInfo:
    assert options.tokenizer.tokenizer_type is not None, "a tokenizer was built from it"
    return TokenInfo(
        tokenizer_type=options.tokenizer.tokenizer_type,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        append_eod=options.append_eod,
        keys=(key,),
        split_sentences=options.splitter is not None,
        documents=builder.num_documents,
        tokens=builder.num_tokens,
    )


def _no_text(key: str, totals: _Totals) -> Problem:
    num_bad = totals.bad.total()
    what = f"all of its {totals.num_lines} lines are empty" if totals.num_lines else "it is empty"
    if num_bad:
        what = f"of its {totals.num_lines} lines {num_bad} are bad ({_counts(totals.bad)}) and the others empty"
    first = f"; the first: {totals.first_bad}" if num_bad else ""
    return Problem(
        f"the input has no text under {key!r}: {what}{first}",
        advice="check --input and --json-keys; nothing was written",
    )


def _counts(bad: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in bad.most_common())


def _report(builders: Mapping[str, IndexedDatasetBuilder], totals: _Totals, seconds: float) -> None:
    if totals.bad:
        logger.warning(
            "%d bad lines skipped: %s; the first: %s", totals.bad.total(), _counts(totals.bad), totals.first_bad
        )
    for key, builder in builders.items():
        if totals.num_empty[key]:
            logger.warning("%d empty documents skipped under %r", totals.num_empty[key], key)
        logger.info(
            "%s: %d documents, %d tokens of %s",
            builder.prefix,
            builder.num_documents,
            builder.num_tokens,
            builder.dtype,
        )
    num_bytes = totals.num_bytes
    logger.info("%.1f MB in %.1f s, %.1f MB/s", num_bytes / 1e6, seconds, num_bytes / 1e6 / seconds)
