"""Encodes batches of documents in worker processes, keeping their order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.documents import DocumentBatch, read_texts
from megatron_ds.data.indexed_format import token_dtype
from megatron_ds.data.sentences import SentenceSplitter
from megatron_ds.errors import DataError, Problem
from megatron_ds.tokenizers import Tokenizer, TokenizerOptions, build_tokenizer, with_backend
from megatron_ds.tokenizers.plain import NullTokenizer
from megatron_ds.utils.processes import end_with_parent

# What is read ahead for a worker: a few batches as they usually are, but not of the longest documents.
_BYTES_PER_WORKER = 4 << 20


@dataclass(frozen=True)
class EncodeOptions:
    """How documents become tokens.

    Attributes:
        tokenizer: the options that choose the tokenizer.
        vocab_size: number of ids, for the NullTokenizer.
        keys: JSON keys to encode.
        append_eod: whether each document ends with the tokenizer's end-of-document id.
        skip_bad: whether bad documents are left out and counted, instead of an error.
        splitter: cuts each document into sentences, which become one sequence each; None: a document is one sequence.
        allow_special: whether the string of a special token in a document becomes its id.
        backend: library that encodes; see `megatron_ds.tokenizers.with_backend`.
    """

    tokenizer: TokenizerOptions
    vocab_size: int | None
    keys: tuple[str, ...]
    append_eod: bool
    skip_bad: bool = False
    splitter: SentenceSplitter | None = None
    allow_special: bool = False
    backend: str = "tokenizers"


@dataclass(frozen=True)
class EncodedDocuments:
    """The documents of one key in one batch.

    Attributes:
        tokens: all documents one after the other, in the dtype of the file, [sum of lengths].
        lengths: tokens per sequence, int64 [sequences].
        sequences: sequences per document, int64 [documents]; None: each document is one sequence.
        num_empty: documents without text, which are left out.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    sequences: NDArray[np.int64] | None
    num_empty: int


@dataclass(frozen=True)
class EncodedBatch:
    """A batch as tokens.

    Attributes:
        documents: by key.
        num_lines: lines, rows or files that were read for it.
        num_bytes: bytes that were read for it.
        bad: documents that were left out because they are bad, by reason.
        first_bad: place and description of the first of them; empty when there is none.
    """

    documents: dict[str, EncodedDocuments]
    num_lines: int
    num_bytes: int
    bad: Counter[str]
    first_bad: str


class Encoder:
    """Turns a batch of documents into tokens."""

    def __init__(self, options: EncodeOptions, tokenizer: Tokenizer) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        # The only tokenizer that can't encode every text.
        self._fault = tokenizer.fault if isinstance(tokenizer, NullTokenizer) else None

    def encode(self, batch: DocumentBatch) -> EncodedBatch:
        """Encodes one batch.

        Raises:
            DataError: a document is bad, and bad ones are not skipped; names its place.
        """
        texts = read_texts(batch, self._options.keys, skip_bad=self._options.skip_bad, fault=self._fault)
        documents = {key: self._encode_texts(each) for key, each in texts.by_key.items()}
        return EncodedBatch(documents, len(batch), batch.num_bytes, texts.bad, texts.first_bad)

    def _encode_texts(self, texts: Sequence[str]) -> EncodedDocuments:
        documents = [pieces for text in texts if (pieces := self._pieces(text))]
        pieces_of_all = [piece for pieces in documents for piece in pieces]
        flat = self._tokenizer.encode_flat(pieces_of_all, allow_special=self._options.allow_special)
        tokens, lengths = flat.ids.astype(self._dtype), flat.lengths
        # The document of each piece. A piece may have no tokens, and a document none in all of its pieces.
        owners = np.repeat(np.arange(len(documents)), [len(pieces) for pieces in documents])[lengths > 0]
        sequences = np.bincount(owners, minlength=len(documents))
        sequences, lengths = sequences[sequences > 0], lengths[lengths > 0]
        if self._options.append_eod:
            tokens, lengths = self._with_eod(tokens, lengths, np.cumsum(sequences) - 1)
        num_empty = len(texts) - len(sequences)
        return EncodedDocuments(tokens, lengths, sequences if self._options.splitter else None, num_empty)

    def _pieces(self, text: str) -> list[str]:
        if not text or text.isspace():
            return []
        return self._options.splitter.split(text) if self._options.splitter else [text]

    def _with_eod(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Puts the end-of-document id after the sequences numbered `last`, into these sequences."""
        assert self._tokenizer.eod_id is not None, "a tokenizer without one was refused"
        ends = np.cumsum(lengths)[last]
        lengths = lengths.copy()
        lengths[last] += 1
        return np.insert(tokens, ends, self._tokenizer.eod_id), lengths


def encode_in_order(
    batches: Iterable[DocumentBatch], options: EncodeOptions, tokenizer: Tokenizer, num_workers: int
) -> Generator[EncodedBatch, None, None]:
    """Encodes batches, giving the results in the order of the batches.

    Args:
        batches: the input. No more than three batches per worker are held at a time, and one per worker when they are
            large.
        options: what to encode.
        tokenizer: the tokenizer. Workers that are forked have it as it is; others build their own from `options`.
        num_workers: processes.

    Raises:
        DataError: a line is bad (the first bad one in the input), or a worker died.
    """
    if num_workers == 1:
        encoder = Encoder(options, tokenizer)
        yield from map(encoder.encode, batches)
        return
    start = multiprocessing.get_context()
    initargs = (options, to_pass_on(tokenizer))
    with ProcessPoolExecutor(num_workers, start, initializer=_start_worker, initargs=initargs) as pool:
        waiting: deque[tuple[int, Future[EncodedBatch]]] = deque()
        # The workers are forked now, from a small process without threads: what reads the input may start some.
        pool.submit(_is_ready)
        try:
            for batch in batches:
                waiting.append((batch.num_bytes, pool.submit(_encode_in_worker, batch)))
                while _are_enough([num_bytes for num_bytes, _ in waiting], num_workers):
                    yield waiting.popleft()[1].result()
            while waiting:
                yield waiting.popleft()[1].result()
        except BrokenProcessPool:
            raise DataError(
                Problem("a worker process died", advice="use fewer --workers when memory ran out; nothing was written")
            ) from None
        finally:
            # Not without waiting: a pool that is left alone may leave its workers waiting for ever (Python 3.11).
            pool.shutdown(wait=True, cancel_futures=True)


def _are_enough(batches: Sequence[int], num_workers: int) -> bool:
    """Whether the workers have enough to do with batches of so many bytes."""
    is_full = len(batches) >= 3 * num_workers or sum(batches) >= num_workers * _BYTES_PER_WORKER
    return is_full and len(batches) > num_workers


# A worker process has one encoder for its whole life; the pool's initializer has no other place to put it.
_worker: list[Encoder] = []


def _start_worker(options: EncodeOptions, tokenizer: Tokenizer | None) -> None:
    end_with_parent()
    # The first process is interrupted as well, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker[:] = [Encoder(options, own_tokenizer(options, tokenizer))]


def to_pass_on(tokenizer: Tokenizer) -> Tokenizer | None:
    """What a new process gets: `tokenizer` when it is forked, as it then shares the memory; None when it can't."""
    return tokenizer if multiprocessing.get_context().get_start_method() == "fork" else None


def own_tokenizer(options: EncodeOptions, passed_on: Tokenizer | None) -> Tokenizer:
    """The tokenizer of one of several processes.

    Args:
        options: those that the first process's tokenizer was built from.
        passed_on: what `to_pass_on` gave there.
    """
    # The processes already use all cores; threads below them would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if passed_on is not None:
        return passed_on
    plain = build_tokenizer(options.tokenizer, vocab_size=options.vocab_size)
    tokenizer, _ = with_backend(plain, options.backend)
    return tokenizer


def _is_ready() -> bool:
    return bool(_worker)


def _encode_in_worker(batch: DocumentBatch) -> EncodedBatch:
    return _worker[0].encode(batch)
