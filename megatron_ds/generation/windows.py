"""Which tokens a model sees for each token that is scored, where a text is longer than its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Tokens that run through the model together.

    Attributes:
        tokens: the context and then the targets; the model sees all but the last one.
        num_targets: so many tokens at the end are scored, each given all before it; the first token never is.
    """

    tokens: tuple[int, ...]
    num_targets: int


def windows_of(tokens: Sequence[int], first_target: int, length: int, stride: int | None = None) -> list[Window]:
    """Windows in which each token from `first_target` on is scored exactly once.

    The first window scores as many targets as it takes, and each later one the next `stride` of them. A window reaches
    back from its last target as far as it can: of a context that is too long, the right end is kept.

    Args:
        tokens: of the whole text.
        first_target: the first token to score, at least 1.
        length: tokens that the model sees at once.
        stride: targets of each window after the first one, at most `length`, which is the default.

    Returns:
        The windows in the order of the text; none where there is nothing to score.
    """
    assert first_target >= 1, "a token is scored by what is before it"
    windows = []
    start, size = first_target, length
    while start < len(tokens):
        end = min(start + size, len(tokens))
        # One token more than the model sees: the last one is a target only.
        windows.append(Window(tuple(tokens[max(0, end - length - 1) : end]), end - start))
        start, size = end, stride or length
    return windows
