"""The grammar of ``--data-path`` and ``--split``."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from megatron_ds.errors import ConfigError, Problem, Source

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class WeightedPrefix:
    """One data set of a blend.

    Attributes:
        prefix: path of its ``.bin``/``.idx`` without the suffix.
        weight: its share, exactly as written; only ratios between the sets matter.
    """

    prefix: str
    weight: Fraction


def parse_data_path(words: Sequence[str]) -> tuple[WeightedPrefix, ...]:
    """Reads ``PREFIX`` or ``WEIGHT PREFIX WEIGHT PREFIX …``.

    Raises:
        ConfigError: nothing given, an odd number of words, or a weight that is not a number above 0, or a
            prefix twice.
    """
    if not words:
        raise ConfigError(_data_path_problem("no training data is given", words))
    if len(words) == 1:
        return (WeightedPrefix(words[0], Fraction(1)),)
    if len(words) % 2:
        raise ConfigError(_data_path_problem(f"--data-path has {len(words)} words, which do not pair up", words))
    pairs = list(zip(words[::2], words[1::2], strict=True))
    problems = [
        _data_path_problem(f"weight {weight!r} of {prefix} is not a number above 0", words)
        for weight, prefix in pairs
        if _parse_weight(weight) is None
    ]
    problems += [
        _data_path_problem(f"{prefix} is given more than once; add up its weights", words)
        for prefix, count in Counter(os.path.normpath(word) for word in words[1::2]).items()
        if count > 1
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(WeightedPrefix(prefix, _parse_weight(weight) or Fraction(0)) for weight, prefix in pairs)


def _parse_weight(word: str) -> Fraction | None:
    try:
        finite = math.isfinite(float(word))
        weight = Fraction(word) if finite else Fraction(0)
    except ValueError:
        return None
    return weight if weight > 0 else None


def _data_path_problem(message: str, words: Sequence[str]) -> Problem:
    return Problem(
        message,
        sources=(Source("data_path", " ".join(words), "--data-path"),) if words else (),
        advice="give one prefix of .bin/.idx files, or pairs: --data-path 0.3 code_text_document 0.7 web_text_document",
    )


def parse_split(text: str) -> tuple[float, float, float]:
    """Reads ``969,30,1``: shares of training, validation and test. What is left out is 0.

    Raises:
        ConfigError: not one to three numbers, one below 0, or all 0.
    """
    words = text.replace("/", ",").split(",")
    try:
        shares = [float(word) for word in words]
    except ValueError:
        raise ConfigError(_split_problem(f"--split {text!r} has something that is not a number", text)) from None
    if len(shares) > len(SPLITS):
        raise ConfigError(_split_problem(f"--split has {len(shares)} numbers; at most {len(SPLITS)} are known", text))
    if not all(math.isfinite(share) and share >= 0 for share in shares) or sum(shares) == 0:
        raise ConfigError(_split_problem("--split needs numbers of at least 0, one of them above 0", text))
    train, valid, test = (*shares, 0.0, 0.0)[: len(SPLITS)]
    return train, valid, test


def _split_problem(message: str, text: str) -> Problem:
    return Problem(
        message,
        sources=(Source("split", text, "--split"),),
        advice="give the shares of training, validation and test documents, for instance --split 969,30,1",
    )


def document_ranges(split: tuple[float, float, float], num_documents: int) -> dict[str, tuple[int, int]]:
    """The documents of each split: consecutive ranges, their borders rounded from cumulative shares as in Megatron.

    Args:
        split: shares of train, valid and test.
        num_documents: documents in the data set.

    Returns:
        For "train", "valid" and "test": first document, and one past the last.
    """
    total = sum(split)
    borders = [0] + [round(num_documents * (sum(split[: number + 1]) / total)) for number in range(len(split))]
    return {name: (borders[number], borders[number + 1]) for number, name in enumerate(SPLITS)}
