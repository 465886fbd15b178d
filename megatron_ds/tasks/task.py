"""What finetuning asks of a task, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.batch import TrainingBatch

# A row of the model's scores for each example, fp32.
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class TaskSet:
    """One file of examples, or one folder.

    Attributes:
        name: in metrics.jsonl and of its predictions: the file's name without its ending.
        examples: encoded.
        has_labels: whether they can be trained on and judged.
        digest: SHA-256 of all files, in hex.
        groups: a part of the set that each example belongs to, where it has parts that are judged by themselves.
    """

    name: str
    examples: Any  # Examples, with what the task that made them knows besides
    has_labels: bool
    digest: str
    groups: tuple[str | None, ...] = ()

    def under(self, name: str) -> TaskSet:
        """The same set with another name."""
        return replace(self, name=name)


class Task(Protocol):
    """A task: how its examples become batches, and what scores say."""

    @property
    def name(self) -> str:
        """As ``--task`` has it."""

    @property
    def needs_scores(self) -> bool:
        """Whether examples are judged by what the model returns for each of them; otherwise by the loss alone."""

    def read(self, paths: Sequence[Path], *, need_labels: bool) -> TaskSet:
        """Reads and encodes files as one set.

        Args:
            paths: the files.
            need_labels: refuse files without labels.

        Raises:
            DataError: a file is missing or broken. Says which, and the line.
        """

    def collate(self, samples: Sequence[Any]) -> TrainingBatch:
        """Makes a micro-batch of samples."""

    def metrics(self, each: TaskSet, scores: Scores) -> Mapping[str, float]:
        """The task's metrics on labelled examples, by name.

        Args:
            each: a set of N examples.
            scores: the model's, ``[N, C]``.
        """

    def score(self, metrics: Mapping[str, float], losses: Mapping[str, float]) -> float:
        """What checkpoints are compared by, the higher the better."""

    def write_predictions(self, each: TaskSet, scores: Scores, folder: Path, name: str) -> Path:
        """Writes what the model says of each example.

        Args:
            each: a set of N examples.
            scores: the model's, ``[N, C]``.
            folder: that exists.
            name: of the file, without its ending.

        Returns:
            The file.

        Raises:
            OSError: it can't be written.
        """


@dataclass(frozen=True)
class TaskData:
    """The task of a run, with all of its examples.

    Attributes:
        task: the task.
        train: what is trained on.
        valid: validation sets.
        test: sets that are looked at once, in the end.
    """

    task: Task
    train: TaskSet
    valid: tuple[TaskSet, ...]
    test: tuple[TaskSet, ...]
