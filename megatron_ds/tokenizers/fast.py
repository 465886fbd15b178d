"""Our interface around a tokenizer of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from megatron_ds.tokenizers.fingerprint import fast_fingerprint

if TYPE_CHECKING:
    import tokenizers


class FastTokenizer:
    """A tokenizer of the `tokenizers` library, encoding documents as they are.

    Args:
        backend: the library's tokenizer. Its truncation, its padding and its matching of special tokens are
            turned off in place: a document is encoded whole, and ``<|endoftext|>`` in it is plain text.
        eod_id: id that ends a document, or None.
    """

    def __init__(self, backend: tokenizers.Tokenizer, eod_id: int | None) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        self.eod_id = eod_id
        # Ids may have gaps, so the number of entries alone could be too small for the largest id.
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = max(len(ids), max(ids, default=-1) + 1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids of a text."""
        return fast_fingerprint(self._backend)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without any special tokens around it."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in order."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens are shown as their strings."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text
