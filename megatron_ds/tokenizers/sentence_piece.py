"""SentencePiece models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tokenizers.base import FlatIds, sentinel_names
from megatron_ds.tokenizers.fingerprint import fingerprint_of
from megatron_ds.tokenizers.special_text import SpecialText

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

# A serialized protocol buffer may be followed by more of it, whose values replace the earlier ones. These are, of
# sentencepiece_model.proto, normalizer_spec (field 3) {add_dummy_prefix (field 3): false}, {add_dummy_prefix: true},
# and {add_dummy_prefix: false, remove_extra_whitespaces (field 4): false}.
_NO_PREFIX_SPACE = b"\x1a\x02\x18\x00"
_PREFIX_SPACE = b"\x1a\x02\x18\x01"
_ALL_SPACES = b"\x1a\x04\x18\x00\x20\x00"


class SentencePieceTokenizer:
    """A SentencePiece ``.model`` file. Control symbols (``</s>``) inside a text are encoded as plain text.

    Args:
        model_file: the ``.model`` file.
        vocab_extra_ids: sentinels ``<extra_id_0>`` … that get ids after the model's pieces; one that the model has
            already keeps its id.

    Raises:
        ConfigError: the file is not a SentencePiece model.
    """

    def __init__(self, model_file: Path, vocab_extra_ids: int = 0) -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            self._processor: Any = SentencePieceProcessor(model_file=str(model_file))
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                Problem(
                    f"{model_file} is not a SentencePiece model: {error}",
                    advice="give --tokenizer-model the .model file that spm_train wrote",
                )
            ) from None
        self._num_pieces: int = self._processor.get_piece_size()
        self._added, self.sentinel_ids = self._with_sentinels(vocab_extra_ids)
        self.vocab_size: int = self._num_pieces + len(self._added)
        # SentencePiece says -1 for "this model has no such symbol"; 0 is an id like any other.
        eos_id: int = self._processor.eos_id()
        self.eod_id: int | None = eos_id if eos_id >= 0 else None

    def _with_sentinels(self, count: int) -> tuple[list[str], tuple[int, ...]]:
        """The sentinels that the model lacks, and the ids of all."""
        added: list[str] = []
        ids: list[int] = []
        for name in sentinel_names(count):
            found: int = self._processor.piece_to_id(name)
            is_piece = self._processor.id_to_piece(found) == name
            ids.append(found if is_piece else self._num_pieces + len(added))
            if not is_piece:
                added.append(name)
        return added, tuple(ids)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids of a text."""
        model = hashlib.sha256(self._processor.serialized_model_proto()).hexdigest()
        return fingerprint_of("SentencePiece", model, *self._added)

    @cached_property
    def _special(self) -> SpecialText:
        model = self._processor
        control = {model.id_to_piece(number): number for number in range(self._num_pieces) if model.is_control(number)}
        names = sentinel_names(len(self.sentinel_ids))
        return SpecialText(control | dict(zip(names, self.sentinel_ids, strict=True)))

    @cached_property
    def _without_prefix(self) -> SentencePieceProcessor:
        return self._changed(_NO_PREFIX_SPACE)

    @cached_property
    def _with_prefix(self) -> SentencePieceProcessor:
        return self._changed(_PREFIX_SPACE)

    @cached_property
    def _with_all_spaces(self) -> SentencePieceProcessor:
        return self._changed(_ALL_SPACES)

    def _changed(self, more: bytes) -> SentencePieceProcessor:
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_proto=self._processor.serialized_model_proto() + more)

    def _encode_stretch(self, text: str, is_after_special: bool) -> list[int]:
        """The ids of a plain stretch: what follows a special token has no space in front unless the text has one."""
        processor = self._processor
        if is_after_special:
            # A model that takes spaces away at the start of a text takes this one too, and a prefix puts it back.
            is_taken_away = text[0].isspace() and not self._without_prefix.normalize(" a").startswith("▁")
            processor = self._with_prefix if is_taken_away else self._without_prefix
        ids: list[int] = processor.encode(text, out_type=int)
        return ids

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The ids of `text`."""
        if allow_special:
            return self._special.encode(text, self._encode_stretch)
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids

    def encode_flat(self, texts: Sequence[str], *, allow_special: bool = False) -> FlatIds:
        """The ids of all texts in one array."""
        if allow_special:
            return FlatIds.of_lists([self.encode(text, allow_special=True) for text in texts])
        arrays: list[NDArray[Any]] = self._processor.encode(list(texts), out_type="numpy")
        return FlatIds.of_arrays(arrays)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, as SentencePiece normalised it; control symbols have no text, sentinels have."""
        return "".join(self._decode_stretches(ids))

    def _decode_stretches(self, ids: Sequence[int]) -> Iterator[str]:
        start = 0
        for place, number in enumerate(ids):
            if number >= self._num_pieces:
                yield self._decode_pieces(ids[start:place], start)
                yield self._added[number - self._num_pieces]
                start = place + 1
        yield self._decode_pieces(ids[start:], start)

    def _decode_pieces(self, ids: Sequence[int], start: int) -> str:
        processor = self._with_all_spaces if start else self._processor
        text: str = processor.decode(list(ids)) if ids else ""
        return text
