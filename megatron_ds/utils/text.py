"""How numbers, counts and values are written in messages."""

from __future__ import annotations

import json
from typing import Any


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 process``, ``4 processes``.

    Args:
        number: how many.
        noun: for one of them.
        plural: for several, where that isn't the noun with an "s".
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def value_text(value: Any) -> str:
    """A value as a JSON spells it (``true``, ``null``), but texts without their quotes.

    Args:
        value: text, number, boolean, None, or lists and dicts of these.
    """
    if isinstance(value, (bool, list, tuple, dict)) or value is None:
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def quoted(value: Any) -> str:
    """The same with quotes around a text, for the middle of a sentence."""
    return repr(value) if isinstance(value, str) else value_text(value)


def has_bytes(text: str) -> bool:
    """Whether a string can be written in UTF-8: half of a surrogate pair, which JSON can hold, is no letter."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
