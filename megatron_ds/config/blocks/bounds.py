"""Upper bounds far above any run, so that a slip of the keyboard is refused with its number and not by the memory."""

from __future__ import annotations

MOST_STEPS = 10**9
WIDEST = 10**7
MOST_RANKS = 10**6
LARGEST_SCALE = 2.0**63
