"""The grammars of ``--data-path``, ``--split`` and ``--valid-weighted-split-paths``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from megatron_ds.errors import ConfigError, Problem, Source

SPLITS = ("train", "valid", "test")

# Weights, and shares of a blend, below this are slips: of a trillion samples, one.
_LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class BlendPart:
    """A range of documents of one data set, with its weight in a blend.

    Attributes:
        prefix: path of its ``.bin``/``.idx`` without the suffix.
        weight: its share, exactly as written; only ratios between the parts of a blend matter.
        start: where its documents begin, as a share of all documents of the set.
        end: where they end.
    """

    prefix: str
    weight: Fraction = Fraction(1)
    start: float = 0.0
    end: float = 1.0

    def documents(self, num_documents: int) -> tuple[int, int]:
        """First document, and one past the last: the shares times the number of documents, rounded as in Megatron."""
        return round(num_documents * self.start), round(num_documents * self.end)


def parse_data_path(words: Sequence[str], flag: str = "--data-path") -> tuple[BlendPart, ...]:
    """Reads ``PREFIX`` or ``WEIGHT PREFIX WEIGHT PREFIX …``.

    Args:
        words: the words after the flag.
        flag: the flag, for messages.

    Raises:
        ConfigError: nothing given, an odd number of words, or a weight that is not a number above 0.
    """

    def problem(message: str) -> Problem:
        return Problem(
            message,
            sources=(Source(_name(flag), " ".join(words), flag),) if words else (),
            advice=f"give one prefix of .bin/.idx files, or pairs: {flag} 0.3 code_text_document 0.7 web_text_document",
        )

    if not words:
        raise ConfigError(problem("no training data is given"))
    if len(words) == 1 and len(words[0].split()) > 1 and _parse_weight(words[0].split()[0]) is not None:
        raise ConfigError(problem(f"{flag} has one word with spaces in it: {words[0]!r}; leave the quotes out"))
    if len(words) == 1:
        return (BlendPart(words[0]),)
    if len(words) % 2:
        raise ConfigError(problem(f"{flag} has {len(words)} words, which do not pair up"))
    pairs = list(zip(words[::2], words[1::2], strict=True))
    problems = [
        problem(f"weight {weight!r} of {prefix} is not a number above 0 (from 1e-12 to 1e12)")
        for weight, prefix in pairs
        if _parse_weight(weight) is None
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(BlendPart(prefix, _parse_weight(weight) or Fraction(0)) for weight, prefix in pairs)


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _parse_weight(word: str) -> Fraction | None:
    try:
        # First: the exact number of 1e-400000000 would have that many digits.
        if not _LEAST_WEIGHT <= float(word) <= 1 / _LEAST_WEIGHT:
            return None
        return Fraction(word)
    except ValueError:
        return None


def parse_weighted_split(text: str, flag: str) -> tuple[str, tuple[BlendPart, ...]]:
    """Reads ``NAME: WEIGHT START:END PREFIX, WEIGHT START:END PREFIX, …``, as BLOOM's scripts write it.

    Args:
        text: the text.
        flag: its flag, for messages.

    Returns:
        The name and the parts.

    Raises:
        ConfigError: there is no name, or a part is not a weight above 0, a range within 0:1 and a prefix.
    """
    name, colon, rest = text.partition(":")
    # A name is what stands before the first colon. Without one, that colon is the one of a range.
    if not colon or re.search(r"\s", name.strip()) or not name.strip():
        raise ConfigError(_weighted_problem("a text that does not begin with a name and a colon", text, flag))
    parts, problems = [], []
    for item in rest.split(","):
        part = _parse_weighted_part(item.split())
        if isinstance(part, str):
            problems.append(_weighted_problem(f"{part} in {item.strip()!r}", text, flag))
        else:
            parts.append(part)
    if problems:
        raise ConfigError(problems)
    return name.strip(), tuple(parts)


def _parse_weighted_part(words: Sequence[str]) -> BlendPart | str:
    """The part, or what is wrong with it."""
    if len(words) != 3:
        return "not three words, a weight, a range and a prefix,"
    weight = _parse_weight(words[0])
    if weight is None:
        return f"a weight {words[0]!r}, which is not a number above 0 (from 1e-12 to 1e12),"
    try:
        start, end = (float(bound) for bound in words[1].split(":"))
    except ValueError:
        return f"a range {words[1]!r}, which is not START:END,"
    if not 0 <= start < end <= 1:
        return f"a range {words[1]!r}, which is not two shares from 0 to 1, the smaller first,"
    return BlendPart(words[2], weight, start, end)


def _weighted_problem(found: str, text: str, flag: str) -> Problem:
    return Problem(
        f"{flag} has {found}",
        sources=(Source(_name(flag), text, flag),),
        advice=f'for instance {flag} "code: 0.3 0:0.95 code_text_document, 0.7 0:0.95 web_text_document"',
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
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not 0 < sum(shares) < math.inf:
        raise ConfigError(_split_problem("--split needs numbers of at least 0, one of them above 0", text))
    train, valid, test = (*shares, 0.0, 0.0)[: len(SPLITS)]
    return train, valid, test


def _split_problem(message: str, text: str) -> Problem:
    return Problem(
        message,
        sources=(Source("split", text, "--split"),),
        advice="give the shares of training, validation and test documents, for instance --split 969,30,1",
    )
