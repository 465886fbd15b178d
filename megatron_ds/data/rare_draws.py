"""The draws of a blend that its rare sets share."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

# Shared draws after which the counts are noted, so that later ones need not be counted from the start.
_MARK_EVERY = 4096


class RareDraws:
    """The draws that the rare sets share: number i is draw floor((i + 1/2) / share of all rare sets) of the blend.

    Any stretch of draws has so many of them that the windows of the rare sets can be kept, and leaves so many that
    those of the common sets can.

    Args:
        numbers: the sets' numbers in the blend.
        shares: their shares of the blend.
        num_sets: sets in the blend.
    """

    def __init__(self, numbers: NDArray[np.int64], shares: NDArray[np.float64], num_sets: int) -> None:
        self.numbers = numbers
        # Without a common set all draws are these; rounding must not leave one out.
        self._share = 1.0 if len(numbers) == num_sets else float(shares.sum())
        self._shares = shares.tolist()
        # The set of each shared draw so far, as an index into `numbers`, and what is needed to go on.
        self._drawn: list[int] = []
        self._taken = [0] * len(numbers)
        self._marks: list[NDArray[np.int64]] = [np.zeros(len(numbers), np.int64)]
        self._waiting = [(0.0, number) for number in range(len(numbers))]
        self._begun: list[tuple[float, int]] = []

    def num_before(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the shared draws are among the first `draws` of the blend."""
        if not self._shares:
            return np.zeros_like(draws)
        # The inverse of `_draw_numbers`, from below: both round.
        numbers: NDArray[np.int64] = np.maximum(np.floor(draws * self._share - 1.5).astype(np.int64), 0)
        for _ in range(3):
            numbers += self._draw_numbers(numbers) < draws
        return numbers

    def between(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shared draws in ``[first, end)``, and the set of each."""
        low, high = self.num_before(np.array([first, end])).tolist()
        self._draw_up_to(high)
        return self._draw_numbers(np.arange(low, high)), self.numbers[np.array(self._drawn[low:high], dtype=np.int64)]

    def counts_before(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draws of each rare set among the first `draws`, [len(draws), rare sets]."""
        ends = self.num_before(draws)
        self._draw_up_to(int(ends.max()))
        counts = np.empty((len(draws), len(self.numbers)), np.int64)
        for place, end in enumerate(ends.tolist()):
            mark = end // _MARK_EVERY
            drawn = np.array(self._drawn[mark * _MARK_EVERY : end], dtype=np.int64)
            counts[place] = self._marks[mark] + np.bincount(drawn, minlength=len(self.numbers))
        return counts

    def _draw_numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._shares:
            return indices
        numbers: NDArray[np.int64] = np.floor((indices + 0.5) / self._share).astype(np.int64)
        return numbers

    def _draw_up_to(self, end: int) -> None:
        for draw in self._draw_numbers(np.arange(len(self._drawn), end)).tolist():
            while self._waiting and self._waiting[0][0] < draw + 1:
                _, number = heapq.heappop(self._waiting)
                heapq.heappush(self._begun, ((self._taken[number] + 1) / self._shares[number], number))
            # One has always begun, but for the rounding of shares.
            _, number = heapq.heappop(self._begun or self._waiting)
            self._taken[number] += 1
            heapq.heappush(self._waiting, (self._taken[number] / self._shares[number], number))
            self._drawn.append(number)
            if len(self._drawn) % _MARK_EVERY == 0:
                self._marks.append(np.array(self._taken, dtype=np.int64))
