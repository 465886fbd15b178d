"""Special tokens inside a text, for tokenizers whose library doesn't find them itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence


class SpecialText:
    """Cuts texts at the strings of special tokens.

    Args:
        ids: the id of each string.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        # The longest first, as one string may be the beginning of another.
        longest_first = sorted(map(re.escape, self._ids), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(longest_first)})") if self._ids else None

    def encode(self, text: str, encode: Callable[[str, bool], Sequence[int]]) -> list[int]:
        """The ids of `text`.

        Args:
            text: the text.
            encode: gives the ids of a stretch of plain text, and is told whether a special token comes before it.
        """
        ids: list[int] = []
        for stretch, special_id in self._stretches(text):
            if stretch:
                ids.extend(encode(stretch, bool(ids)))
            if special_id is not None:
                ids.append(special_id)
        return ids

    def _stretches(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Each plain stretch, which may be empty, with the id of the special token that ends it."""
        parts = self._pattern.split(text) if self._pattern else [text]
        for number in range(0, len(parts), 2):
            yield parts[number], self._ids[parts[number + 1]] if number + 1 < len(parts) else None
