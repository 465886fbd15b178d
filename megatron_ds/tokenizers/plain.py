"""Tokenizers that need no file."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_ds.errors import DataError, Problem
from megatron_ds.tokenizers.fingerprint import fingerprint_of


class ByteTokenizer:
    """One id per byte of the text's UTF-8, and id 256 for the end of a document."""

    vocab_size: int = 257
    eod_id: int | None = 256
    fingerprint: str = fingerprint_of("ByteTokenizer")

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The bytes of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD, the end of a document ``<|endoftext|>``."""
        pieces = (b"<|endoftext|>" if token == self.eod_id else bytes((token,)) for token in ids)
        return b"".join(pieces).decode("utf-8", errors="replace")


class NullTokenizer:
    """For text that is already ids: ``"5 17 3"`` is three tokens. Has no end-of-document id.

    Args:
        vocab_size: number of ids in use; ids at or above it are refused.
    """

    eod_id: int | None = None
    # The number of ids only says which are refused.
    fingerprint: str = fingerprint_of("NullTokenizer")

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """The numbers in `text`, separated by white space.

        Raises:
            DataError: something is not a number, or not an id of this vocabulary.
        """
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise DataError(Problem(f"NullTokenizer reads ids separated by spaces: {error}")) from None
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise DataError(Problem(f"token id {wrong} is outside of the vocabulary of {self.vocab_size} ids"))
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers in each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The ids as numbers, separated by spaces."""
        return " ".join(str(token) for token in ids)
