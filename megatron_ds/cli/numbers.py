"""Numbers on the command lines of tools."""

from __future__ import annotations

import argparse
import math


def at_least_one(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    return _whole_number(text, 1)


def at_least_zero(text: str) -> int:
    """A whole number of 0 or more, for argparse."""
    return _whole_number(text, 0)


def above_zero(text: str) -> float:
    """A finite number above 0, for argparse."""
    return _number(text, math.inf, "a number above 0")


def share(text: str) -> float:
    """A number above 0 and at most 1, for argparse."""
    return _number(text, 1.0, "a number above 0 and at most 1")


def _whole_number(text: str, least: int) -> int:
    # ASCII alone, as `int` would take 1_0 and the digits of any script; 18 digits are always an int64.
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of {least} or more")
    return int(text)


def _number(text: str, most: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value <= most and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {wanted}")
    return value
