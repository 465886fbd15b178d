"""Finetuning as a job: a task's examples for some epochs, its metrics, and the model that it begins with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import TrainingOrder
from megatron_ds.data.batch import TrainingBatch
from megatron_ds.data.samples import DatasetOf
from megatron_ds.engine.base import TrainEngine
from megatron_ds.engine.distributed import Joined
from megatron_ds.models import LayerDef, run_layers
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.tasks.epochs import EpochOrder, TaskDataset
from megatron_ds.tasks.pretrained import BodyMatch, PretrainedModel
from megatron_ds.tasks.task import Scores, TaskData, TaskSet
from megatron_ds.training.batches import batches_of_run
from megatron_ds.training.evaluation import means_over
from megatron_ds.training.job import Evaluation, Judgement
from megatron_ds.training.run_folder import writing_into
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted

PREDICTIONS = "predictions"


def num_steps(num_examples: int, global_batch_size: int, epochs: int) -> tuple[int, int]:
    """Optimizer steps of one epoch, whose last batch may be smaller, and of all epochs."""
    of_epoch = -(-num_examples // global_batch_size)
    return of_epoch, epochs * of_epoch


def task_order(run: RunConfig, data: TaskData) -> TrainingOrder:
    """What the order of a finetuning run's samples depends on.

    Args:
        run: the run.
        data: its task with all examples.
    """
    sampling = {
        "task": data.task.name,
        "examples": len(data.train.examples),
        "train_data": data.train.digest[:16],
        "packing": run.task.packing,
        "global_batch_size": run.global_batch_size,
    }
    return TrainingOrder((), run.model.seq_length, run.training.seed, "single", None, sampling)


@dataclass(frozen=True)
class FinetuningJob:
    """Trains on the examples of a task; see `TrainingJob`.

    Attributes:
        run: the run.
        data: its task with all examples.
        pretrained: what a new run begins with; None for random weights.
    """

    run: RunConfig
    data: TaskData
    pretrained: PretrainedModel | None

    def layers(self, mpu: ModelParallelUnit) -> list[LayerDef]:
        """The model's list of layers; packed examples see their own tokens only."""
        return run_layers(self.run, mpu)

    def order(self) -> TrainingOrder:
        """Of the training examples."""
        return task_order(self.run, self.data)

    def open(self, joined: Joined, mpu: ModelParallelUnit, progress: Mapping[str, int]) -> TaskSamples:  # noqa: ARG002
        """The examples are read already."""
        return TaskSamples(self.run, self.data, mpu)

    def begin(self, engine: TrainEngine) -> list[str]:
        """Loads the body of the pretrained model."""
        if self.pretrained is None:
            return ["all weights are random: no --pretrained-checkpoint is given"]
        return BodyMatch.between(self.run.model, self.pretrained).load(engine, self.pretrained)


@dataclass(frozen=True)
class TaskSamples:
    """The examples of a finetuning run; see `Samples`.

    Attributes:
        run: the run.
        data: its task with all examples.
        mpu: where this rank sits.
    """

    run: RunConfig
    data: TaskData
    mpu: ModelParallelUnit

    def batches(self, consumed_samples: int) -> Iterator[Sequence[TrainingBatch]]:
        """For each global batch from `consumed_samples` on, this rank's micro-batches."""
        examples, size = self.data.train.examples, self.run.global_batch_size
        of_epoch, _ = num_steps(len(examples), size, 1)
        # Those of all steps behind those that are consumed, however large the batches of earlier steps were.
        samples = consumed_samples + self.run.training.train_iters * size
        epochs = -(-samples // (of_epoch * size))
        order = EpochOrder(len(examples), global_batch_size=size, epochs=epochs, seed=self.run.training.seed)
        return self._batches(TaskDataset(examples, order), consumed_samples)

    def evaluate(self, engine: TrainEngine, split: str) -> Iterator[Evaluation]:
        """Losses and metrics of each set with labels, every example counted once; predictions are written."""
        if self.run.training.eval_iters == 0:
            return
        task = self.data.task
        for each in {"valid": self.data.valid, "test": self.data.test}[split]:
            losses, scores = self._losses_and_scores(engine, each)
            if scores is not None:
                self._write_predictions(split, each, scores, engine.progress.step)
            if each.has_labels:
                metrics = {} if scores is None else task.metrics(each, scores)
                yield Evaluation(each.name, losses, metrics)

    def judge(self, evaluations: Sequence[Evaluation]) -> Judgement:
        """The mean over the sets of what the task is judged by."""
        if not evaluations:
            return Judgement()
        score = float(np.mean([self.data.task.score(one.metrics, one.losses) for one in evaluations]))
        metrics = {
            f"{one.name}.{name}": value
            for one in evaluations
            for name, value in (one.metrics or one.losses).items()
            if np.isfinite(value)
        }
        # A metric that does not exist, as the correlation with equal predictions, is no score.
        return Judgement(score if np.isfinite(score) else None, metrics)

    def _losses_and_scores(self, engine: TrainEngine, each: TaskSet) -> tuple[dict[str, float], Scores | None]:
        """The losses, each a mean over its labels, and the model's scores of each example in their order."""
        order = EpochOrder(len(each.examples), global_batch_size=self.run.global_batch_size, seed=None)
        steps = self._batches(TaskDataset(each.examples, order), 0)
        needs_scores = self.data.task.needs_scores
        results = [engine.evaluate(next(steps), outputs=needs_scores) for _ in range(order.steps_per_epoch)]
        losses = means_over(results)
        outputs = [result.outputs.cpu() for result in results if result.outputs is not None]
        if not outputs:
            return losses, None
        # [sequences, C] -> [samples, scores]: the choices of a sample are sequences one after the other.
        scores = torch.cat(outputs).view(len(order), -1)[: len(each.examples)]
        return losses, scores.numpy()

    def _batches(self, dataset: DatasetOf[Any], consumed_samples: int) -> Iterator[list[TrainingBatch]]:
        return batches_of_run(self.run, dataset, self.mpu, consumed_samples, self.data.task.collate)

    def _write_predictions(self, split: str, each: TaskSet, scores: Scores, step: int) -> None:
        """Writes ``DIR/predictions/step<N>/<split>_<set>.…``, on rank 0."""
        if self.mpu.global_rank != 0 or self.run.checkpoint.save is None:
            return
        folder = Path(self.run.checkpoint.save) / PREDICTIONS / f"step{step}"
        with writing_into(folder):
            folder.mkdir(parents=True, exist_ok=True)
            path = self.data.task.write_predictions(each, scores, folder, f"{split}_{each.name}")
        if not each.has_labels:
            logger.info("predictions of %s without labels: %s", counted(len(each.examples), "example"), path)
