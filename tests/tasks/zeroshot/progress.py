"""For tests that show no progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def no_progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """Counts, and checks at the end that all of it was done."""
    done: list[int] = []
    yield done.append
    assert sum(done) == total, what
