"""The errors that users see, and the four parts that each of them has.

A message says what was found, the rule it breaks, where each value came from, and what to do. Errors are
collected as `Problem`s wherever possible, so that one run reports everything that is wrong at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One value that takes part in a problem, with the place that it came from.

    Attributes:
        name: the option as the user knows it, for instance ``global_batch_size``.
        value: the value as text.
        origin: the place it was read from, for instance ``--global-batch-size`` or ``my_ds.json: bf16.enabled``.
    """

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        message: what was found and the rule it breaks, in one sentence with the numbers in it.
        sources: the values that take part, with their origins.
        advice: what to do, in the imperative. May be empty when the message says it.
    """

    message: str
    sources: tuple[Source, ...] = ()
    advice: str = ""

    def __str__(self) -> str:
        lines = [self.message]
        if self.sources:
            width = max(len(f"{source.name}={source.value}") for source in self.sources)
            lines += [f"  {f'{source.name}={source.value}':<{width}}  from {source.origin}" for source in self.sources]
        if self.advice:
            lines.append(f"  {self.advice}")
        return "\n".join(lines)


class MegatronDsError(Exception):
    """Base of every error that is a message to the user. Carries the process's exit code."""

    exit_code = 1

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        name = type(self).__name__
        if len(self.problems) == 1:
            return f"{name}: {self.problems[0]}"
        numbered = "\n".join(f"{number}. {problem}" for number, problem in enumerate(self.problems, 1))
        return f"{name}: {len(self.problems)} problems\n{numbered}"


class ConfigError(MegatronDsError):
    """An option, a config file or a combination of them is wrong. Nothing was started."""

    exit_code = 2


class DataError(MegatronDsError):
    """A data file is missing, broken or too small."""

    exit_code = 3


class CheckpointError(MegatronDsError):
    """A checkpoint is missing, broken or does not fit this run."""

    exit_code = 4


class TrainingError(MegatronDsError):
    """Training can't go on: the same on all ranks."""

    exit_code = 5
