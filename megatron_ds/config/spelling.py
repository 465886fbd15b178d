"""Guesses at what a misspelt word was meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Shares of letters that two spellings have in common: of one word, and of a whole name without what joins its words.
_SAME_WORD, _SAME_LETTERS = 0.6, 0.9


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known spelling that `word` is a slip of; None when there is none.

    Names of options share many words (`size`, `parallel`, `iters`), so a name that looks near as a whole may well mean
    something else. A guess has to have every word of `word`, in their order and each spelt nearly alike, and at most
    one word more; or the same letters, joined otherwise or in another case.

    Args:
        word: what was written.
        known: what could have been meant.
    """
    spellings = list(known)
    for spelling in spellings:
        if spelling.casefold() == word.casefold():
            return spelling
    near = difflib.get_close_matches(word, spellings, n=5, cutoff=0.6)
    return next((guess for guess in near if _is_slip(word, guess)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` – did you mean X?`` for the nearest known spelling; empty when nothing is near."""
    guess = nearest(word, known)
    return f" – did you mean {guess}?" if guess is not None else ""


def _is_slip(word: str, guess: str) -> bool:
    words, meant = _words(word), _words(guess)
    if _alike("".join(words), "".join(meant)) >= _SAME_LETTERS:
        return True
    if len(meant) - len(words) not in (0, 1):
        return False
    # With one word more, each of its places is tried.
    candidates = [meant] if len(meant) == len(words) else [meant[:i] + meant[i + 1 :] for i in range(len(meant))]
    return any(
        all(_alike(one, other) >= _SAME_WORD for one, other in zip(words, candidate, strict=True))
        for candidate in candidates
    )


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_. ]+", name.lower()) if word]


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
