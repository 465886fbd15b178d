"""Finetuning a BERT on texts and pairs of texts: GLUE's tasks and RACE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_ds.tasks.classification_batch import TaskBatch, make_task_batch
from megatron_ds.tasks.digest import digest_of, name_of
from megatron_ds.tasks.glue.definitions import GlueTask
from megatron_ds.tasks.glue.encode import encode_glue
from megatron_ds.tasks.glue.read import read_glue
from megatron_ds.tasks.metrics import compute_metrics, predictions_of
from megatron_ds.tasks.pairs import ClassificationSample
from megatron_ds.tasks.predictions import write_glue_predictions, write_race_predictions
from megatron_ds.tasks.race.encode import encode_race, race_metrics
from megatron_ds.tasks.race.read import read_race
from megatron_ds.tasks.task import Scores, TaskSet
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.utils.logging import logger


@dataclass(frozen=True)
class GlueFinetuning:
    """A task of GLUE; see `Task`.

    Attributes:
        definition: its columns, labels and metrics.
        tokenizer: with BERT's special tokens.
        seq_length: tokens of a sample.
    """

    definition: GlueTask
    tokenizer: Tokenizer
    seq_length: int
    needs_scores: bool = True

    @property
    def name(self) -> str:
        """As ``--task`` has it."""
        return self.definition.name

    def read(self, paths: Sequence[Path], *, need_labels: bool) -> TaskSet:
        """Reads and encodes files as one set."""
        files = [read_glue(self.definition, path, need_labels=need_labels) for path in paths]
        for file in files:
            if file.left_out:
                logger.info("%s: %s", file.path, file.left_out.describe("line"))
        examples = encode_glue(files, self.tokenizer, self.seq_length)
        return TaskSet(name_of(paths), examples, files[0].has_labels, digest_of(paths))

    def collate(self, samples: Sequence[ClassificationSample]) -> TaskBatch:
        """Makes a micro-batch of samples."""
        return make_task_batch(samples, is_regression=self.definition.is_regression)

    def metrics(self, each: TaskSet, scores: Scores) -> Mapping[str, float]:
        """The official metrics of the task."""
        predictions = predictions_of(scores, is_regression=self.definition.is_regression)
        return compute_metrics(self.definition.metrics, predictions, _labels(each))

    def score(self, metrics: Mapping[str, float], losses: Mapping[str, float]) -> float:  # noqa: ARG002
        """The metric that the task is known by."""
        return metrics[self.definition.best_by]

    def write_predictions(self, each: TaskSet, scores: Scores, folder: Path, name: str) -> Path:
        """Writes a TSV as GLUE's server takes it."""
        path = folder / f"{name}.tsv"
        predictions = predictions_of(scores, is_regression=self.definition.is_regression)
        write_glue_predictions(path, self.definition, each.examples.uids, predictions)
        return path


@dataclass(frozen=True)
class RaceFinetuning:
    """RACE: which of four options answers a question on an article; see `Task`.

    Attributes:
        tokenizer: with BERT's special tokens.
        seq_length: tokens of an article with a question and an option.
    """

    tokenizer: Tokenizer
    seq_length: int
    name: str = "RACE"
    needs_scores: bool = True

    def read(self, paths: Sequence[Path], *, need_labels: bool) -> TaskSet:
        """Reads and encodes folders as one set."""
        folders = [read_race(path, need_labels=need_labels) for path in paths]
        examples = encode_race(folders, self.tokenizer, self.seq_length)
        levels = tuple(question.level for folder in folders for question in folder.questions)
        return TaskSet(name_of(paths), examples, folders[0].has_labels, digest_of(paths), levels)

    def collate(self, samples: Sequence[ClassificationSample]) -> TaskBatch:
        """Makes a micro-batch of samples, with a sequence for each option."""
        return make_task_batch(samples)

    def metrics(self, each: TaskSet, scores: Scores) -> Mapping[str, float]:
        """Accuracy over all questions, those of middle schools and those of high schools."""
        return race_metrics(predictions_of(scores), _labels(each), each.groups)

    def score(self, metrics: Mapping[str, float], losses: Mapping[str, float]) -> float:  # noqa: ARG002
        """Accuracy over all questions."""
        return metrics["accuracy"]

    def write_predictions(self, each: TaskSet, scores: Scores, folder: Path, name: str) -> Path:
        """Writes a JSON object for each question."""
        path = folder / f"{name}.jsonl"
        write_race_predictions(path, each.examples.uids, scores, each.examples.labels)
        return path


def _labels(each: TaskSet) -> NDArray[np.float64]:
    return np.asarray(each.examples.labels, dtype=np.float64)
