"""SentencePiece models."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tokenizers.fingerprint import fingerprint_of


class SentencePieceTokenizer:
    """A SentencePiece ``.model`` file. Control symbols (``</s>``) inside a text are encoded as plain text.

    Args:
        model_file: the ``.model`` file.

    Raises:
        ConfigError: the file is not a SentencePiece model.
    """

    def __init__(self, model_file: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            self._processor = SentencePieceProcessor(model_file=str(model_file))
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                Problem(
                    f"{model_file} is not a SentencePiece model: {error}",
                    advice="give --tokenizer-model the .model file that spm_train wrote",
                )
            ) from None
        self.vocab_size: int = self._processor.get_piece_size()
        # SentencePiece says -1 for "this model has no such symbol"; 0 is an id like any other.
        eos_id: int = self._processor.eos_id()
        self.eod_id: int | None = eos_id if eos_id >= 0 else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids of a text."""
        return fingerprint_of("SentencePiece", hashlib.sha256(self._processor.serialized_model_proto()).hexdigest())

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        batch: list[list[int]] = self._processor.encode(list(texts), out_type=int)
        return batch

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, as SentencePiece normalised it; control symbols have no text."""
        text: str = self._processor.decode(list(ids))
        return text
