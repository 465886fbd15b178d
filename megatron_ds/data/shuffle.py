"""Random permutations that stay the same in all versions of NumPy, as `Generator.permutation` does not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Bits of a key, a multiple of those of a digit. Equal keys of a row keep their order: of a hundred million, a dozen do.
_KEY_BITS, _DIGIT_BITS = 48, 16
# From this width on, sorting digit by digit is faster (NumPy sorts 16 bits without comparing).
_WIDE = 4096


def permutations(bits: np.random.PCG64, num_rows: int, width: int) -> NDArray[np.int64]:
    """Permutations of ``0 … width - 1``, int64 [num_rows, width]. Row r does not depend on the number of rows.

    Args:
        bits: the random stream; only its raw output, which NumPy promises to keep, is used.
        num_rows: number of permutations.
        width: of each.
    """
    if width < _WIDE:
        keys = _keys(bits, num_rows * width).reshape(num_rows, width)
        return keys.argsort(axis=1, kind="stable")
    rows = np.empty((num_rows, width), np.int64)
    for row in rows:
        row[:] = _argsort_wide(_keys(bits, width))
    return rows


def _keys(bits: np.random.PCG64, count: int) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = bits.random_raw(count) >> np.uint64(64 - _KEY_BITS)
    return keys


def _argsort_wide(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.arange(len(keys))
    for shift in range(0, _KEY_BITS, _DIGIT_BITS):
        digits = (keys >> np.uint64(shift)).astype(np.uint16)
        order = order.take(digits.take(order).argsort(kind="stable"))
    return order
