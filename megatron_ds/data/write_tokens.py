"""Writes encoded documents into token files, one pair per key, and counts what was read and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megatron_ds.data.encode import EncodedBatch
from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.data.token_info import TokenInfo, put_pairs_in_place

Builders = Mapping[str, IndexedDatasetBuilder]


@dataclass(frozen=True)
class Advance:
    """What one batch was.

    Attributes:
        num_lines: lines, rows or files.
        num_bytes: bytes that were read.
        num_tokens: tokens under all keys.
    """

    num_lines: int
    num_bytes: int
    num_tokens: int


@dataclass
class Totals:
    """What has been read and left out.

    Attributes:
        num_bytes: bytes that were read.
        num_lines: lines, rows or files.
        num_empty: documents without text, by key.
        bad: documents that were left out because they are bad, by reason.
        first_bad: place and description of the first of them; empty when there is none.
    """

    num_bytes: int = 0
    num_lines: int = 0
    num_empty: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""

    def add_batch(self, batch: EncodedBatch) -> None:
        """Counts a batch."""
        num_empty = Counter({key: documents.num_empty for key, documents in batch.documents.items()})
        self.add(Totals(batch.num_bytes, batch.num_lines, num_empty, batch.bad, batch.first_bad))

    def add(self, other: Totals) -> None:
        """Counts what comes after this in the input."""
        self.num_bytes += other.num_bytes
        self.num_lines += other.num_lines
        self.num_empty.update(other.num_empty)
        self.bad.update(other.bad)
        self.first_bad = self.first_bad or other.first_bad


@contextmanager
def pairs_to_write(prefixes: Mapping[str, str], dtype: np.dtype[Any]) -> Iterator[Builders]:
    """A pair of token files for each key; they appear at the end of the block, or not at all after an exception.

    Args:
        prefixes: path of each key's pair, without suffix.
        dtype: dtype of the tokens.
    """
    with ExitStack() as stack:
        yield {key: stack.enter_context(IndexedDatasetBuilder(prefix, dtype)) for key, prefix in prefixes.items()}


@contextmanager
def described_pairs_to_write(prefixes: Mapping[str, str], dtype: np.dtype[Any], info: TokenInfo) -> Iterator[Builders]:
    """The same, with the ``.json`` beside each pair that says what it was made with; all keys' files appear, or none.

    Args:
        prefixes: path of each key's pair, without suffix.
        dtype: dtype of the tokens.
        info: the description; key and numbers are filled in.
    """
    with ExitStack() as stack:
        builders: dict[str, IndexedDatasetBuilder] = {}
        for key, prefix in prefixes.items():
            builders[key] = IndexedDatasetBuilder(prefix, dtype)
            stack.callback(builders[key].abort)
        yield builders
        put_pairs_in_place([(builder, _counted(info, key, builder)) for key, builder in builders.items()])


def _counted(info: TokenInfo, key: str, builder: IndexedDatasetBuilder) -> TokenInfo:
    return replace(info, keys=(key,), documents=builder.num_documents, tokens=builder.num_tokens)


def add_batches(batches: Iterable[EncodedBatch], builders: Builders, report: Callable[[Advance], None]) -> Totals:
    """Appends batches to the pairs of their keys.

    Args:
        batches: the input, encoded.
        builders: the pair of each key.
        report: called after each batch.
    """
    totals = Totals()
    for batch in batches:
        for key, documents in batch.documents.items():
            builders[key].add_documents(documents.tokens, documents.lengths, documents.sequences)
        totals.add_batch(batch)
        num_tokens = sum(len(documents.tokens) for documents in batch.documents.values())
        report(Advance(batch.num_lines, batch.num_bytes, num_tokens))
    return totals
