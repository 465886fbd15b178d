"""Bounds far from any run, so that a slip of the keyboard is refused with its number and not by the memory or a NaN."""

from __future__ import annotations

MOST_STEPS = 10**9
WIDEST = 10**7
MOST_RANKS = 10**6
LARGEST_SCALE = 2.0**63
# Far from 1e-38, where normal numbers in fp32 end: below that, what keeps a divisor from zero may be zero itself.
SMALLEST = 1e-30
