"""Our interface around a tokenizer of the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tokenizers.base import FlatIds, sentinel_names
from megatron_ds.tokenizers.fast_content import with_prefix_at_start_only, without_pieces
from megatron_ds.tokenizers.fingerprint import fast_fingerprint
from megatron_ds.tokenizers.long_texts import LongTextCutter

if TYPE_CHECKING:
    import tokenizers

GROUP_CHARS = 1 << 18


class FastTokenizer:
    """A tokenizer of the `tokenizers` library, encoding documents as they are.

    Args:
        backend: the library's tokenizer. Its truncation, its padding and its matching of special tokens are
            turned off in place: a document is encoded whole, and ``<|endoftext|>`` in it is plain text.
        eod_id: id that ends a document, or None.
        vocab_extra_ids: sentinels ``<extra_id_0>`` … that get ids after the vocabulary, in place; one that the
            vocabulary has already keeps its id.

    Raises:
        ConfigError: there is no room for sentinels after the vocabulary, as its ids have gaps.
    """

    def __init__(self, backend: tokenizers.Tokenizer, eod_id: int | None, vocab_extra_ids: int = 0) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self.sentinel_ids = _add_sentinels(backend, vocab_extra_ids)
        self._backend = backend
        self._plain = _without_forgeries(backend)
        self.eod_id = eod_id
        # Ids may have gaps, so the number of entries alone could be too small for the largest id.
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = max(len(ids), max(ids, default=-1) + 1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the ids of a text."""
        return fast_fingerprint(self._backend)

    def vocab(self) -> dict[str, int]:
        """The id of each token, added tokens included."""
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocab

    def special_ids(self) -> list[int]:
        """The ids of special tokens, those of sentinels included."""
        return [number for number, token in self._backend.get_added_tokens_decoder().items() if token.special]

    def special_tokens(self) -> dict[str, int]:
        """The id of each special token, by its string."""
        added = self._backend.get_added_tokens_decoder().items()
        return {token.content: number for number, token in added if token.special}

    @property
    def continuation_prefix(self) -> str | None:
        """What begins a piece inside of a word (WordPiece's ``##``), or None for models that mark no such pieces."""
        model = self._backend.model
        return getattr(model, "continuing_subword_prefix", None) if type(model).__name__ == "WordPiece" else None

    def content(self) -> dict[str, Any]:
        """What a ``tokenizer.json`` of the tokenizer for documents would hold."""
        content: dict[str, Any] = json.loads(self._plain.to_str())
        return content

    def to_json(self) -> str:
        """A ``tokenizer.json`` with everything that the tokenizer knows, special tokens too."""
        text: str = self._backend.to_str()
        return text

    def to_json_without_special_tokens(self) -> str:
        """A ``tokenizer.json`` without added tokens; it gives documents the same ids if all these are special."""
        import tokenizers

        bare = tokenizers.Tokenizer(self._plain.model)
        bare.normalizer = self._plain.normalizer
        bare.pre_tokenizer = self._plain.pre_tokenizer
        text: str = bare.to_str()
        return text

    @cached_property
    def _matching(self) -> tokenizers.Tokenizer:
        """The library's tokenizer that knows special tokens in a text."""
        changed = with_prefix_at_start_only(json.loads(self._backend.to_str()))
        matching = _from_content(changed) if changed is not None else _copy(self._backend)
        matching.encode_special_tokens = False
        return matching

    @cached_property
    def _plain_cutter(self) -> LongTextCutter:
        return LongTextCutter(self._plain)

    @cached_property
    def _matching_cutter(self) -> LongTextCutter:
        return LongTextCutter(self._matching)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The ids of `text`, without any special tokens around it."""
        backend = self._matching if allow_special else self._plain
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of `text`, special tokens matched, and the character of `text` at which each of them begins.

        These are the ids that ``encode(text, allow_special=True)`` gives.
        """
        encoding = self._placing.encode(text, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    @cached_property
    def _placing(self) -> tokenizers.Tokenizer:
        """The same as `_matching`, but for places: a post-processor of GPT-2's kind leaves spaces out of them."""
        placing = _copy(self._matching)
        placing.post_processor = None
        placing.encode_special_tokens = False
        return placing

    def encode_flat(self, texts: Sequence[str], *, allow_special: bool = False) -> FlatIds:
        """The ids of all texts in one int64 array."""
        backend = self._matching if allow_special else self._plain
        cutter = self._matching_cutter if allow_special else self._plain_cutter
        pieces = [cutter.cut(text) for text in texts]
        groups = [
            FlatIds.of_lists([each.ids for each in backend.encode_batch_fast(group, add_special_tokens=False)])
            for group in _in_groups(piece for text in pieces for piece in text)
        ]
        return FlatIds.of_groups(groups).joined([len(text) for text in pieces])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens are shown as their strings."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text


def _in_groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts that are encoded together: what the library holds for each of them is many times the text."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text)
        if num_chars >= GROUP_CHARS:
            yield group
            group, num_chars = [], 0
    if group:
        yield group


def _add_sentinels(backend: tokenizers.Tokenizer, count: int) -> tuple[int, ...]:
    import tokenizers

    if not count:
        return ()
    names = sentinel_names(count)
    used = {number for text, number in backend.get_vocab(with_added_tokens=True).items() if text not in names}
    # Not normalised, so that a tokenizer of lower case finds them in the text as it was.
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    ids = tuple(vocab[name] for name in names)
    if used & set(ids):
        # The library counts entries to find the next id, which is taken when the ids have gaps.
        raise ConfigError(
            Problem(
                "--vocab-extra-ids is given, and there is no room for sentinels after this vocabulary: its "
                f"{len(used)} tokens have ids up to {max(used)}",
                advice="add <extra_id_0> … to tokenizer.json yourself",
            )
        )
    return ids


def _without_forgeries(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """`backend`, or a copy for models that find a special token's string among the pieces of their vocabulary."""
    special = {token.content: number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    # What is unknown has this id whatever it says, and may.
    unknown = getattr(backend.model, "unk_token", None)
    forgeable = [text for text, number in special.items() if text != unknown and _encodes_to(backend, text, number)]
    if not forgeable:
        return backend
    plain = _from_content(without_pieces(json.loads(backend.to_str()), forgeable))
    plain.encode_special_tokens = True
    return plain


def _encodes_to(backend: tokenizers.Tokenizer, text: str, number: int) -> bool:
    # Beside other letters too: a model of words sees it only alone, one with a prefix space only inside.
    return any(number in backend.encode(each, add_special_tokens=False).ids for each in (text, f"a{text}"))


def _from_content(content: dict[str, object]) -> tokenizers.Tokenizer:
    import tokenizers

    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _copy(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    import tokenizers

    return tokenizers.Tokenizer.from_str(backend.to_str())
