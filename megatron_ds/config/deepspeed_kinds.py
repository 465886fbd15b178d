"""What the keys of a DeepSpeed JSON take: each kind of value in words, with its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of value.

    Attributes:
        wanted: what a key of this kind takes, so that "KEY is …" and "write …" read well.
        accepts: tells whether a value, as `json` reads it, is of this kind. Never raises.
    """

    wanted: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(least: int, greatest: int = 2**63 - 1) -> Kind:
    """A whole number; people write 5e8 for a size, which `json` reads as a float."""

    def accepts(value: Any) -> bool:
        # The range comes first: int() of an infinity or NaN raises.
        return _is_number(value) and least <= value <= greatest and int(value) == value

    return Kind(f"a whole number of at least {least}", accepts)


def _one_of(*words: str) -> Kind:
    """One of a few words, spelt just so."""
    return Kind("one of " + ", ".join(words), lambda value: isinstance(value, str) and value in words)


def _one_of_any_case(*words: str) -> Kind:
    lower = [word.lower() for word in words]
    return Kind("one of " + ", ".join(words), lambda value: isinstance(value, str) and value.lower() in lower)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = _count(0)
POSITIVE = _count(1)
LEVELS = _count(-1)
FACTOR = Kind("a number from 0 to 1000", lambda value: _is_number(value) and 0 <= value <= 1000)
TEXT = Kind("text", lambda value: isinstance(value, str))
NAMES = Kind("a list of names", _is_names)
NAME_OR_NAMES = Kind("a name or a list of names", lambda value: isinstance(value, str) or _is_names(value))
AUTO_OR_NAMES = Kind('"auto" or a list of names', lambda value: value == "auto" or _is_names(value))
DTYPE = _one_of("bf16", "fp16", "fp32")
DTYPE_ANY_CASE = _one_of_any_case("bf16", "fp16", "fp32")
LOG_LEVEL = _one_of("debug", "info", "warning", "error", "critical")
TAG_VALIDATION = _one_of_any_case("Ignore", "Warn", "Fail")
COMET_MODE = _one_of("get", "create", "get_or_create")
DEVICE = TEXT  # which devices there are is said by the check of offload, with the way out
