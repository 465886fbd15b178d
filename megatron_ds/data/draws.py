"""Random numbers that stay the same in all versions of NumPy, for what is drawn sample by sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Draws:
    """A stream of random numbers that its key determines.

    Only the raw output of the bit generator is used: NumPy promises to keep that, but not what its `Generator` makes
    of it.

    Args:
        *key: numbers of at least 0.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def raw(self, count: int) -> NDArray[np.uint64]:
        """64 random bits each, [count]."""
        raw: NDArray[np.uint64] = self._bits.random_raw(count)
        return raw

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Numbers in [0, 1), [count]."""
        uniforms: NDArray[np.float64] = (self.raw(count) >> np.uint64(11)) * 2.0**-53
        return uniforms

    def integers(self, bound: int, count: int) -> NDArray[np.int64]:
        """Whole numbers in [0, bound), [count]. Evenly, to within bound / 2^32.

        Args:
            bound: at most 2^32.
            count: how many.
        """
        high = self.raw(count) >> np.uint64(32)
        integers: NDArray[np.int64] = ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)
        return integers

    def order(self, width: int) -> NDArray[np.int64]:
        """A permutation of 0 … width - 1."""
        return self.raw(width).argsort(kind="stable")

    def heads(self, count: int) -> int:
        """How many of `count` fair coins show heads."""
        words = self.raw((count + 63) // 64)
        return int(np.unpackbits(words.astype("<u8").view(np.uint8))[:count].sum())
