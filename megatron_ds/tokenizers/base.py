"""What every tokenizer offers, and the options that choose one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Turns text into token ids and back.

    The string of a special token inside a document (``<|endoftext|>``) is encoded as plain text: a document
    can't forge a document border.
    """

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding needs: the largest id + 1, added tokens included."""

    @property
    def eod_id(self) -> int | None:
        """Id that ends a document, or None when the tokenizer has none. 0 is a valid id."""

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids of a text. The same in every process."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without any special tokens around it."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in order."""

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
        """GPT2BPETokenizer: vocab.json."""

    @property
    def merge_file(self) -> str | None:
        """GPT2BPETokenizer: merges.txt."""
