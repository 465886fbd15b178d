"""The order in which a blend draws from its data sets."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.samples import SampleDataset

# Weights are used exactly when their pattern repeats within this many draws. Others are rounded to the pattern of about
# this length that is closest: shares are then off by less than 2^-22, so that a million draws stay within 1 as well.
LONGEST_PERIOD = 2**22


@dataclass(frozen=True)
class BlendOrder:
    """A periodic pattern of draws.

    After any number of draws n, the draws from set j differ from its share x n by less than 1 (R. Tijdeman, The
    chairman assignment problem, Discrete Mathematics 32, 1980).

    Attributes:
        sets: number of the set of each draw, int32 [length].
        ranks: which of its set's draws this is, counted from 0, int64 [length].
        per_period: draws of each set in a whole period, int64 [number of sets].
    """

    sets: NDArray[np.int32]
    ranks: NDArray[np.int64]
    per_period: NDArray[np.int64]

    @property
    def period(self) -> int:
        """Draws after which the pattern repeats."""
        return int(self.per_period.sum())

    def locate(self, index: int) -> tuple[int, int]:
        """Which set draw `index` comes from, and which sample of it."""
        repeats, place = divmod(index, self.period)
        number = int(self.sets[place])
        return number, repeats * int(self.per_period[number]) + int(self.ranks[place])

    def counts(self, num_draws: int) -> list[int]:
        """Draws from each set among the first `num_draws`."""
        repeats, rest = divmod(num_draws, self.period)
        counts = repeats * self.per_period + np.bincount(self.sets[:rest], minlength=len(self.per_period))
        return [int(count) for count in counts]


def blend_order(weights: Sequence[Fraction], num_draws: int) -> BlendOrder:
    """The pattern for `weights`, which need not add up to 1; only ratios matter.

    The order of draws does not depend on `num_draws`.

    Args:
        weights: shares of the sets, above 0.
        num_draws: draws that will be asked for; a pattern is not made longer than that.
    """
    per_period = _draws_per_period(weights)
    length = min(num_draws, sum(per_period))
    sets = np.array(_draws(per_period, length), dtype=np.int32)
    ranks = np.empty(length, dtype=np.int64)
    for number in range(len(weights)):
        places = np.flatnonzero(sets == number)
        ranks[places] = np.arange(len(places))
    return BlendOrder(sets, ranks, np.array(per_period, dtype=np.int64))


def _draws_per_period(weights: Sequence[Fraction]) -> list[int]:
    """Whole numbers in the ratio of the weights, the smallest there are, or rounded so that they stay manageable."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = math.gcd(*whole)
    whole = [count // divisor for count in whole]
    total = sum(whole)
    if total <= LONGEST_PERIOD:
        return whole
    shares = np.array([count / total for count in whole])
    return [max(1, round(draws)) for draws in (shares * _best_period(shares)).tolist()]


def _best_period(shares: NDArray[np.float64]) -> int:
    """The period near the longest allowed at which the shares come closest to whole numbers."""
    periods = np.arange(LONGEST_PERIOD // 2, LONGEST_PERIOD)
    error = np.zeros(len(periods))
    for share in shares:
        draws = periods * share
        np.maximum(error, np.abs(draws - np.rint(draws)), out=error)
    return int(periods[np.argmin(error)])


def _draws(per_period: Sequence[int], length: int) -> list[int]:
    """The set of each draw: of the sets whose next draw is due, the one that must come first.

    With K sets, shares w and the margin 1 / (2K - 2), draw k (from 0) of a set is due at time (k + margin) / w and
    late after (k + 1 - margin) / w.
    """
    if len(per_period) == 1:
        return [0] * length
    due, late, sets = _jobs(np.array(per_period, dtype=np.int64), length)
    # Draws as small integers in the order of their deadlines, so that the heap compares nothing else.
    by_deadline = np.lexsort((sets, late))
    ranks = np.empty(len(sets), dtype=np.int64)
    ranks[by_deadline] = np.arange(len(sets))
    by_due = np.argsort(due, kind="stable")
    starts = np.searchsorted(due[by_due], np.arange(1, length + 1), side="right").tolist()
    waiting: list[int] = ranks[by_due].tolist()
    heap: list[int] = []
    drawn = []
    begin = 0
    for end in starts:
        for rank in waiting[begin:end]:
            heapq.heappush(heap, rank)
        begin = end
        drawn.append(heapq.heappop(heap))
    chosen: list[int] = sets[by_deadline[drawn]].tolist()
    return chosen


def _jobs(per_period: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Due time, deadline and set of every draw that can come among the first `length`.

    Times are in units that make them whole numbers where they are compared: no rounding decides an order.
    """
    period, parts = int(per_period.sum()), 2 * len(per_period) - 2
    counts = -(-length * per_period // period) + 1
    sets = np.repeat(np.arange(len(per_period)), counts)
    draws = np.concatenate([np.arange(count) for count in counts])
    scale = per_period[sets] * parts
    due = -(-period * (draws * parts + 1) // scale)
    late = period * ((draws + 1) * parts - 1) // scale
    return due, late, sets


class BlendedDataset:
    """Several data sets as one, drawn from in the ratio of their weights.

    Args:
        datasets: per set as many samples as `order` draws from it; None where it draws none.
        order: the order of draws.
        num_samples: number of samples.
    """

    def __init__(self, datasets: Sequence[SampleDataset | None], order: BlendOrder, num_samples: int) -> None:
        self._datasets = datasets
        self._order = order
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        """Sample `index` of the blend, [seq_length + 1]."""
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        number, sample = self._order.locate(index)
        dataset = self._datasets[number]
        assert dataset is not None, "the order draws from sets that have samples"
        return dataset[sample]
