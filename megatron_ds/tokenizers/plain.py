"""Tokenizers that need no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatron_ds.errors import DataError, Problem
from megatron_ds.tokenizers.base import FlatIds
from megatron_ds.tokenizers.fingerprint import fingerprint_of
from megatron_ds.tokenizers.special_text import SpecialText

_EOD_TEXT, _EOD_ID = "<|endoftext|>", 256


class ByteTokenizer:
    """One id per byte of the text's UTF-8, and id 256, ``<|endoftext|>``, for the end of a document."""

    vocab_size: int = 257
    eod_id: int | None = _EOD_ID
    sentinel_ids: tuple[int, ...] = ()
    fingerprint: str = fingerprint_of("ByteTokenizer")

    def __init__(self) -> None:
        self._special = SpecialText({_EOD_TEXT: _EOD_ID})

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The bytes of `text`."""
        if allow_special:
            return self._special.encode(text, lambda stretch, _: stretch.encode("utf-8"))
        return list(text.encode("utf-8"))

    def encode_flat(self, texts: Sequence[str], *, allow_special: bool = False) -> FlatIds:
        """The bytes of all texts in one array."""
        if allow_special:
            return FlatIds.of_lists([self.encode(text, allow_special=True) for text in texts])
        encoded = [text.encode("utf-8") for text in texts]
        ids = np.frombuffer(b"".join(encoded), np.uint8)
        # Wide enough for the end of a document as well.
        return FlatIds(ids.astype(np.uint16), np.array([len(each) for each in encoded], np.int64))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD, the end of a document ``<|endoftext|>``."""
        pieces = (_EOD_TEXT.encode() if token == _EOD_ID else bytes((token,)) for token in ids)
        return b"".join(pieces).decode("utf-8", errors="replace")


class NullTokenizer:
    """For text that is already ids: ``"5 17 3"`` is three tokens. Has no end-of-document id.

    Args:
        vocab_size: number of ids in use; ids at or above it are refused.
    """

    eod_id: int | None = None
    sentinel_ids: tuple[int, ...] = ()
    # The number of ids only says which are refused.
    fingerprint: str = fingerprint_of("NullTokenizer")

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:  # noqa: ARG002 – there are none
        """The numbers in `text`, separated by white space.

        Raises:
            DataError: something is no id of this vocabulary; see `fault`.
        """
        if (fault := self.fault(text)) is not None:
            raise DataError(Problem(f"NullTokenizer reads ids separated by spaces; the text has {fault}"))
        return [int(word.lstrip("0") or "0") for word in text.split()]

    def fault(self, text: str) -> str | None:
        """What in `text` is no id of this vocabulary; None when all of it are ids.

        An id is written with the digits 0 to 9 alone: `int` would also take ``1_0``, ``+5`` and digits of any script.
        """
        for word in text.split():
            if not (word.isascii() and word.isdigit()):
                return f"{word[:40]!r} where an id belongs"
            # Python converts no number of thousands of digits.
            digits = word.lstrip("0") or "0"
            if len(digits) > len(str(self.vocab_size)) or int(digits) >= self.vocab_size:
                return f"id {word[:40]}, outside of the vocabulary of {self.vocab_size} ids"
        return None

    def encode_flat(self, texts: Sequence[str], *, allow_special: bool = False) -> FlatIds:  # noqa: ARG002
        """The numbers in all texts, int64."""
        return FlatIds.of_lists([self.encode(text) for text in texts])

    def decode(self, ids: Sequence[int]) -> str:
        """The ids as numbers, separated by spaces."""
        return " ".join(str(token) for token in ids)
