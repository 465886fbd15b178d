"""What an evaluation came to: numbers with names, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskResult:
    """The numbers of one task, or of one of several sets.

    Attributes:
        name: of the task or set.
        metrics: the numbers by name.
        num_examples: texts, questions or samples; None where that is not known.
        num_tokens: tokens that were scored; None where that is not known.
    """

    name: str
    metrics: Mapping[str, float]
    num_examples: int | None = None
    num_tokens: int | None = None


def perplexity(loss: float) -> float:
    """``exp(loss)`` of a loss in nats; infinite where that is beyond all numbers."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def table(results: Sequence[TaskResult]) -> list[str]:
    """Lines with a row for each number.

    Args:
        results: at least one.
    """
    rows = [("task", "metric", "value", "examples", "tokens")]
    for result in results:
        for place, (metric, value) in enumerate(result.metrics.items()):
            # A task's own words stand in its first row only.
            first = place == 0
            name, examples, tokens = result.name, _count(result.num_examples), _count(result.num_tokens)
            rows.append((name if first else "", metric, f"{value:.6g}", *((examples, tokens) if first else ("", ""))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join([*left, *right]).rstrip())
    return [lines[0], "-" * sum(widths, 2 * (len(widths) - 1)), *lines[1:]]


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
