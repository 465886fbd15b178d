"""The order in which a blend draws from its data sets.

After any number of draws n, each set with weight w (of a sum of 1) has been drawn from w x n times, to within 1. So
draw k of a set, counted from 0, has a window: after k / w and up to (k + 1) / w draws of the blend. Taking, at each
draw, the set whose window ends first among those whose window has begun keeps all windows (R. Tijdeman, The chairman
assignment problem, Discrete Mathematics 32, 1980; in scheduling, "earliest deadline first").

Done one draw after the other, that is slow, and draw number 50 million needs all before it. So the draws are cut into
blocks that are worked out independently, many at a time in NumPy: the counts at a block's first draw are found from the
weights alone (`_counts_at`). Sets that are drawn from only a few times per block would spoil that. They share evenly
spaced draws of their own, handed out one after the other, and the blocks have the rest.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.rare_draws import RareDraws

# Draws in a block: the fewest of these with which rare sets have a small share of the blend.
_BLOCKS = (4096, 16384, 65536)
_MOST_RARE = 0.01
# A set with fewer draws per block is a rare one.
_LEAST_DRAWS_PER_BLOCK = 16
# Draws before a block that are worked out to find its first counts, for each set.
_APPROACH_PER_SET = 16
# Draws worked out at once: when a single one is asked for, and when a long stretch is.
_FEW_DRAWS, _MANY_DRAWS = 1 << 17, 1 << 24
_MOST_THREADS = 8
# The end of a window as one integer: draws in units of 2^-32, then the number of the set. The least key then tells the
# set as well. Both together stay below these two marks: windows of common sets end within two blocks.
_FRACTION_BITS = 32
_NOT_YET = 1 << 61
_NEVER = 1 << 62


class BlendOrder:
    """Which set each draw of a blend is from. Depends on the ratios of the weights alone.

    Args:
        weights: shares of the sets, above 0; they need not add up to 1.
        stretches_kept: results that are kept for later draws, of `_FEW_DRAWS` draws each.
    """

    def __init__(self, weights: Sequence[Fraction], stretches_kept: int = 64) -> None:
        total = sum(weights)
        self.shares: NDArray[np.float64] = np.array([float(weight / total) for weight in weights])
        self._dtype = np.uint8 if len(weights) <= 256 else np.uint32
        self._block = next(
            (size for size in _BLOCKS if self.shares[self._are_rare(size)].sum() <= _MOST_RARE), _BLOCKS[-1]
        )
        is_rare = self._are_rare(self._block)
        # The larger share first, as where two windows end together the first set is taken: weights of 0.333 and 0.667
        # are then drawn from in the order of 1 and 2.
        by_share = np.argsort(-self.shares, kind="stable")
        self._common = by_share[~is_rare[by_share]]
        self._rare = RareDraws(np.flatnonzero(is_rare), self.shares[is_rare], len(weights))
        self._stretches_kept = stretches_kept
        self._stretches: OrderedDict[int, _Stretch] = OrderedDict()

    def _are_rare(self, block: int) -> NDArray[np.bool_]:
        is_rare: NDArray[np.bool_] = self.shares * block < _LEAST_DRAWS_PER_BLOCK
        return is_rare

    def locate(self, index: int) -> tuple[int, int]:
        """Which set draw `index` comes from, and which draw of that set it is, both counted from 0."""
        stretch, place = self._stretch_of(index)
        return stretch.locate(place)

    def counts(self, num_draws: int) -> list[int]:
        """Draws from each set among the first `num_draws`."""
        if len(self.shares) == 1:
            return [num_draws]
        stretch, place = self._stretch_of(num_draws)
        return [int(count) for count in stretch.counts_before(place)]

    def sets(self, num_draws: int) -> NDArray[Any]:
        """The sets of the first `num_draws` draws, [num_draws]."""
        num_blocks, many = -(-num_draws // self._block), _MANY_DRAWS // self._block
        # They come one after the other; once there, several threads may read them.
        self._rare.counts_before(np.array([num_blocks * self._block]))

        def work_out(first: int) -> NDArray[Any]:
            return self._work_out(first, min(many, num_blocks - first))[0].reshape(-1)

        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
            parts = list(threads.map(work_out, range(0, num_blocks, many)))
        return np.concatenate(parts)[:num_draws] if parts else np.empty(0, self._dtype)

    def _stretch_of(self, index: int) -> tuple[_Stretch, int]:
        few = _FEW_DRAWS // self._block
        number, place = divmod(index, _FEW_DRAWS)
        stretch = self._stretches.get(number)
        if stretch is None:
            stretch = _Stretch(*self._work_out(number * few, few))
            self._stretches[number] = stretch
            if len(self._stretches) > self._stretches_kept:
                self._stretches.popitem(last=False)
        else:
            self._stretches.move_to_end(number)
        return stretch, place

    def _work_out(self, first_block: int, num_blocks: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Draws of consecutive blocks, [num_blocks, block], and the counts before each block, [num_blocks, sets]."""
        block = self._block
        borders = (first_block + np.arange(num_blocks + 1)) * block
        # One block more in front: its last draws are the approach to the first.
        rare_draws, rare_sets = self._rare.between(int(borders[0]) - block, int(borders[-1]))
        places = np.divmod(rare_draws - (borders[0] - block), block)
        is_rare = np.zeros((num_blocks + 1, block), bool)
        is_rare[places] = True
        draws = np.empty((num_blocks + 1, block), self._dtype)
        counts = np.empty((num_blocks, len(self.shares)), np.int64)
        if len(self._common):
            states = self._counts_at_borders(borders, is_rare)
            chosen, _ = _draw(self.shares[self._common], states[:, :-1], borders[:-1], is_rare[1:], states[:, 1:])
            draws[1:] = self._common.astype(self._dtype)[chosen]
            counts[:, self._common] = states[:, :-1].T
        draws[places] = rare_sets
        counts[:, self._rare.numbers] = self._rare.counts_before(borders[:-1])
        return draws[1:], counts

    def _counts_at_borders(self, borders: NDArray[np.int64], is_rare: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Draws of each common set before each border, [common sets, borders]."""
        shares = self.shares[self._common]
        approach = min(self._block, _APPROACH_PER_SET * len(shares))
        starts = borders - approach
        _, states = _draw(
            shares,
            _counts_at(shares, starts, self._rare.num_before(starts)),
            starts,
            is_rare[:, self._block - approach :],
        )
        states[:, borders == 0] = 0
        return states


def _counts_at(shares: NDArray[np.float64], draws: NDArray[np.int64], num_rare: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts from which all windows can be kept from there on, [sets, len(draws)].

    Every draw whose window has ended is made, and of those whose window has begun the ones that end first.

    Args:
        shares: of the common sets.
        draws: draws of the blend so far.
        num_rare: how many of these are of rare sets.
    """
    quotas = shares[:, None] * draws
    counts = np.floor(quotas)
    missing = draws - num_rare - counts.sum(axis=0)
    window_ends = np.where(counts < quotas, (counts + 1) / shares[:, None], np.inf)
    ranks = window_ends.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    chosen: NDArray[np.int64] = (counts + (ranks < missing)).astype(np.int64)
    return chosen


def _draw(
    shares: NDArray[np.float64],
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    is_rare: NDArray[np.bool_],
    last_counts: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Makes the draws of several blocks side by side: always the set whose window ends first.

    Args:
        shares: of the common sets.
        counts: draws of each set so far, [sets, blocks].
        starts: draws of the blend before each block, [blocks].
        is_rare: draws that are none of these sets', [blocks, length].
        last_counts: counts to arrive at, [sets, blocks].

    Returns:
        The set of each draw, [blocks, length] (anything where a draw is a rare set's); and, where there is nothing to
        arrive at, the counts at the end, [sets, blocks].
    """
    number_bits = (len(shares) - 1).bit_length()

    def as_keys(draws: Any) -> NDArray[np.int64]:
        whole: NDArray[np.int64] = np.rint(draws * 2.0**_FRACTION_BITS).astype(np.int64)
        return whole << number_bits

    one_draw, number_mask = 1 << _FRACTION_BITS + number_bits, (1 << number_bits) - 1
    spacing = as_keys(1 / shares[:, None])
    # From the start of the block on, so that the whole numbers don't become too large.
    keys = as_keys((counts + 1) / shares[:, None] - starts) | np.arange(len(shares))[:, None]
    first_keys = keys.copy()
    last_keys = keys + (last_counts - counts) * spacing if last_counts is not None else np.full_like(keys, _NEVER)
    keys[keys == last_keys] = _NEVER
    chosen = np.empty((is_rare.shape[1], len(starts)), np.uint16)
    columns = np.arange(len(starts))
    # Flat places of keys: indexing with one array takes half the time of two.
    flat_keys, flat_last = keys.reshape(-1), last_keys.reshape(-1)
    begun = spacing + one_draw
    has_rare = np.logical_or.reduce(is_rare, axis=0)
    for place in range(is_rare.shape[1]):
        # A window begins where the one before it ended.
        has_begun = keys < begun + place * one_draw
        first = np.where(has_begun, keys, keys | _NOT_YET).min(axis=0) & number_mask
        chosen[place] = first
        at = first * len(starts) + columns
        if has_rare[place]:
            common = ~is_rare[:, place]
            first, at = first[common], at[common]
        moved = flat_keys[at] + spacing[first, 0]
        flat_keys[at] = np.where(moved == flat_last[at], _NEVER, moved)
    return chosen.T, counts + (keys - first_keys) // spacing


class _Stretch:
    """Consecutive blocks that are worked out.

    Args:
        draws: the set of each draw, [blocks, block].
        counts: draws of each set before each block, [blocks, sets].
    """

    def __init__(self, draws: NDArray[Any], counts: NDArray[np.int64]) -> None:
        self._draws = draws
        self._counts = counts

    def locate(self, place: int) -> tuple[int, int]:
        block, within = divmod(place, self._draws.shape[1])
        number = self._draws[block, within]
        before = int(np.count_nonzero(self._draws[block, :within] == number))
        return int(number), int(self._counts[block, number]) + before

    def counts_before(self, place: int) -> NDArray[np.int64]:
        block, within = divmod(place, self._draws.shape[1])
        drawn: NDArray[np.int64] = np.bincount(self._draws[block, :within], minlength=self._counts.shape[1])
        counts: NDArray[np.int64] = self._counts[block] + drawn
        return counts
