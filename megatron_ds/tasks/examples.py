"""Examples of a task as they are read, before they become tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from megatron_ds.utils.text import counted


@dataclass(frozen=True)
class Example:
    """One text or pair of texts.

    Attributes:
        uid: what it is called in its file: the number there, or counted from 0.
        text_a: the first text.
        text_b: the second one, or None.
        label: the class as its number, or the score; None in a file without labels.
    """

    uid: str
    text_a: str
    text_b: str | None
    label: float | None


@dataclass
class LeftOut:
    """What was read and is not used.

    Attributes:
        reasons: how often each reason was met.
        first: place of the first one; empty when there is none.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def add(self, reason: str, place: str) -> None:
        """Counts one."""
        self.reasons[reason] += 1
        self.first = self.first or place

    def __bool__(self) -> bool:
        return bool(self.reasons)

    def describe(self, noun: str) -> str:
        """One line for the log: ``3 lines left out: 3 with too few columns; the first at train.tsv:7``.

        Args:
            noun: for one of them.
        """
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common())
        return f"{counted(self.reasons.total(), noun)} left out: {reasons}; the first at {self.first}"
