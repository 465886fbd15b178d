"""What every tokenizer offers, and the options that choose one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FlatIds:
    """The ids of several texts in one array.

    Attributes:
        ids: all texts one after the other, [sum of lengths], of whichever integer dtype the library gives.
        lengths: ids per text, int64 [texts]; a text without ids has 0.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]

    @classmethod
    def of_lists(cls, texts: Sequence[Sequence[int]]) -> FlatIds:
        """From one list of ids per text; int64."""
        lengths = _lengths(texts)
        return cls(np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum())), lengths)

    @classmethod
    def of_arrays(cls, texts: Sequence[NDArray[Any]]) -> FlatIds:
        """From one array of ids per text."""
        return cls(np.concatenate(texts) if texts else np.empty(0, np.int64), _lengths(texts))

    @classmethod
    def of_groups(cls, groups: Sequence[FlatIds]) -> FlatIds:
        """From groups of texts, one after the other."""
        if len(groups) == 1:
            return groups[0]
        ids = np.concatenate([group.ids for group in groups]) if groups else np.empty(0, np.int64)
        lengths = np.concatenate([group.lengths for group in groups]) if groups else np.empty(0, np.int64)
        return cls(ids, lengths)

    def joined(self, counts: Sequence[int]) -> FlatIds:
        """The same ids as fewer texts.

        Args:
            counts: how many of these texts, one after the other, make each of the new ones.
        """
        if len(counts) == len(self.lengths):
            return self
        ends = np.cumsum(counts)
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        return FlatIds(self.ids, totals[ends] - totals[ends - np.asarray(counts)])


def _lengths(texts: Iterable[Sequence[int] | NDArray[Any]]) -> NDArray[np.int64]:
    return np.array([len(ids) for ids in texts], dtype=np.int64)


class Tokenizer(Protocol):
    """Turns text into token ids and back.

    The string of a special token inside a document (``<|endoftext|>``, ``<extra_id_0>``) is encoded as plain text
    unless `allow_special` is true: a document can't forge a document border.
    """

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding needs: the largest id + 1, added tokens included."""

    @property
    def eod_id(self) -> int | None:
        """Id that ends a document, or None when the tokenizer has none. 0 is a valid id."""

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        """Ids of ``<extra_id_0>``, ``<extra_id_1>`` …, as many as ``--vocab-extra-ids`` asks for."""

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids of a text. The same in every process."""

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The ids of `text`, without any special tokens around it.

        Args:
            text: the text.
            allow_special: whether the string of a special token in `text` becomes its one id.
        """

    def encode_flat(self, texts: Sequence[str], *, allow_special: bool = False) -> FlatIds:
        """The ids of all texts, in order: what `encode` gives for each, in one array."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens are shown as their strings."""


class TokenizerOptions(Protocol):
    """The options that choose a tokenizer. `DataConfig` has them all."""

    @property
    def tokenizer_type(self) -> str | None:
        """Kind of tokenizer, for instance ``HFTokenizer``."""

    @property
    def tokenizer_name_or_path(self) -> str | None:
        """HFTokenizer: a folder, a tokenizer.json, or a hub name."""

    @property
    def tokenizer_model(self) -> str | None:
        """SentencePieceTokenizer: the .model file."""

    @property
    def vocab_file(self) -> str | None:
        """GPT2BPETokenizer: vocab.json. BertWordPiece…: vocab.txt."""

    @property
    def merge_file(self) -> str | None:
        """GPT2BPETokenizer: merges.txt."""

    @property
    def vocab_extra_ids(self) -> int:
        """Number of sentinels ``<extra_id_0>`` … that get ids of their own, for T5."""


def sentinel_names(count: int) -> list[str]:
    """The strings of the first `count` sentinels."""
    return [f"<extra_id_{number}>" for number in range(count)]
