"""Texts of token ids, kept in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_ds.tokenizers import FlatIds, Tokenizer


@dataclass(frozen=True)
class TokenTexts:
    """Texts as token ids.

    Attributes:
        ids: all texts one after the other, int32 [sum of lengths].
        starts: where each begins, and where the last one ends, int64 [texts + 1].
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, flat: FlatIds) -> TokenTexts:
        """From what a tokenizer gives."""
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(flat.lengths)])
        return cls(flat.ids.astype(np.int32), starts)

    @classmethod
    def encoded(cls, texts: Sequence[str], tokenizer: Tokenizer) -> TokenTexts:
        """The ids of each text, without special tokens."""
        return cls.of(tokenizer.encode_flat(texts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int, /) -> NDArray[np.int32]:
        """The ids of text `index`."""
        return self.ids[self.starts[index] : self.starts[index + 1]]
