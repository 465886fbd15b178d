"""Cuts a long text where that changes no id, so that memory does not grow with the longest document.

The `tokenizers` library holds some 150 bytes for each byte of a text while it encodes it: 5 MB in one line are 750 MB.
"""

from __future__ import annotations

import json
import string
from typing import TYPE_CHECKING, Any

from megatron_ds.tokenizers.word_rules import adds_prefix_space, is_known_rule

if TYPE_CHECKING:
    import tokenizers

# Characters of a piece: small beside what a process needs anyway, large beside a word.
PIECE_CHARS = 1 << 16

# Places in a word that are tried. Each costs the encoding of a piece.
_TRIES = 16
# Characters of one kind on both sides of a cut in a word: no contraction ('re) and no other kind is near.
_AROUND = 4
_MARKS = frozenset(string.punctuation) - {"'"}


class LongTextCutter:
    """Cuts long texts into pieces whose ids, one after the other, are those of the text.

    A cut is made, in this order of preference,

    - before a single space between two other characters: no word of the supported patterns goes on over it;
    - between two words as the library finds them;
    - in a word of letters, of punctuation or of spaces, between two tokens that stay as they are when encoded together.
      A sequence of BPE tokens is the encoding of its text exactly when this holds for all neighbours: the first merge
      over a border would be a merge in the two neighbours alone as well.

    Where none of these can be found the text stays whole. So does every text of a tokenizer that is not a byte-level
    BPE of a supported pattern.

    Args:
        backend: the library's tokenizer, as it encodes.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        content = json.loads(backend.to_str())
        self._is_supported = _is_supported(content)
        # Their strings are matched before words are, and may have spaces.
        self._matched = [
            token["content"]
            for token in content["added_tokens"]
            if not (token["special"] and backend.encode_special_tokens)
        ]

    def cut(self, text: str) -> list[str]:
        """The pieces of `text`; the text itself when it is short."""
        if len(text) <= PIECE_CHARS or not self._is_supported or any(token in text for token in self._matched):
            return [text]
        pieces: list[str] = []
        start = 0
        while len(text) - start > PIECE_CHARS:
            length = self._first_piece(text, start)
            if length is None:
                break
            pieces.append(text[start : start + length])
            start += length
        return [*pieces, text[start:]]

    def _first_piece(self, text: str, start: int) -> int | None:
        """Characters of a piece that starts at `start`, or None."""
        return (
            _before_lone_space(text, start)
            or self._between_words(text[start : start + PIECE_CHARS])
            or self._in_word(text, start)
        )

    def _between_words(self, window: str) -> int | None:
        words = self._backend.pre_tokenizer.pre_tokenize_str(window)
        # The last word may go on behind the window, and white space at its end may be two words of one. White space
        # before a cut would be other words without what follows it.
        starts = (word_start for _, (word_start, _) in reversed(words[1:-1]))
        return next((place for place in starts if not window[place - 1].isspace()), None)

    def _in_word(self, text: str, start: int) -> int | None:
        window = text[start : start + PIECE_CHARS]
        spans = self._spans(window)
        tries = 0
        for (first, end), (following, _) in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
            if end != following or not _is_in_word(window, end):
                continue
            tries += 1
            if tries > _TRIES or end <= PIECE_CHARS // 2:
                return None
            # The next piece starts with this token, whatever its own end will be.
            _, next_end = self._spans(text[start + end : start + end + PIECE_CHARS])[0]
            pair = window[first:end], text[start + end : start + end + next_end]
            if self._is_kept_apart(*pair):
                return end
        return None

    def _spans(self, text: str) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = self._backend.encode(text, add_special_tokens=False).offsets
        return spans

    def _is_kept_apart(self, left: str, right: str) -> bool:
        return _is_run(left + right) and self._spans(left + right) == [
            (0, len(left)),
            (len(left), len(left) + len(right)),
        ]


def _before_lone_space(text: str, start: int) -> int | None:
    """Length of the longest piece that ends before a single space between two other characters."""
    end = start + PIECE_CHARS
    while (end := text.rfind(" ", start + 1, end)) >= 0:
        if not text[end - 1].isspace() and not text[end + 1].isspace():
            return end - start
    return None


def _is_in_word(text: str, place: int) -> bool:
    around = text[place - _AROUND : place + _AROUND] if place >= _AROUND else ""
    return len(around) == 2 * _AROUND and _is_run(around)


def _is_run(text: str) -> bool:
    """Whether `text` is ASCII letters, punctuation or spaces alone: one word, wherever it is cut."""
    return (text.isascii() and text.isalpha()) or text.strip(" ") == "" or _MARKS.issuperset(text)


def _is_supported(content: dict[str, Any]) -> bool:
    model = content["model"]
    is_plain_bpe = model["type"] == "BPE" and not any(
        model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    )
    # The known rules match from left to right, look ahead by one character at most and never back, and none of their
    # matches goes on over a space after something else.
    rule = content["pre_tokenizer"]
    is_scan = is_known_rule(rule) and not adds_prefix_space(rule)
    return is_plain_bpe and content["normalizer"] is None and is_scan
