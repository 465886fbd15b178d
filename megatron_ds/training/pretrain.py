"""Pretraining as a job: token files, and the model's losses on sets of them that are held out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from megatron_ds.checkpoint import FoundCheckpoint
from megatron_ds.checkpoint.run_lock import RunLock
from megatron_ds.config import ResolvedRun
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import Datasets, TrainingOrder, build_run_datasets, samples_needed
from megatron_ds.data.batch import TrainingBatch
from megatron_ds.engine.base import TrainEngine
from megatron_ds.engine.distributed import Joined, wait_for_all
from megatron_ds.models import LayerDef, run_layers
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.training.batches import rank_batches
from megatron_ds.training.evaluation import mean_losses
from megatron_ds.training.job import UNJUDGED, Evaluation, Judgement
from megatron_ds.training.run import run_training


def pretrain(resolved: ResolvedRun, found: FoundCheckpoint | None, lock: RunLock | None = None) -> None:
    """Pretrains the model that `resolved` describes. Called by every process.

    Args:
        resolved: the run, checked, with its vocabulary size known.
        found: the checkpoint to go on from.
        lock: of the folder of ``--save``, in the one process that holds it.
    """
    run_training(resolved, PretrainingJob(resolved.run), found, lock)


@dataclass(frozen=True)
class PretrainingJob:
    """Trains on the run's token files; see `TrainingJob`.

    Attributes:
        run: the run.
    """

    run: RunConfig

    def layers(self, mpu: ModelParallelUnit) -> list[LayerDef]:
        """The model's list of layers, with what the data needs of it."""
        return run_layers(self.run, mpu)

    def order(self) -> TrainingOrder:
        """Of the training blend."""
        return TrainingOrder.of(self.run)

    def open(self, joined: Joined, mpu: ModelParallelUnit, progress: Mapping[str, int]) -> PretrainingSamples:
        """Opens the data sets; one process of each node builds the indices that are missing."""
        datasets = build_run_datasets(
            self.run,
            samples=samples_needed(self.run, **progress),
            is_builder=os.environ["LOCAL_RANK"] == "0",
            # No collective: indexing may take longer than one waits.
            wait=partial(wait_for_all, joined.store, "sample indices"),
        )
        return PretrainingSamples(self.run, datasets, mpu)

    def begin(self, engine: TrainEngine) -> list[str]:  # noqa: ARG002 - random weights are all that it needs
        """Nothing to add to random weights."""
        return []


@dataclass(frozen=True)
class PretrainingSamples:
    """The data sets of a pretraining run; see `Samples`.

    Attributes:
        run: the run.
        datasets: samples of training, validation and test.
        mpu: where this rank sits.
    """

    run: RunConfig
    datasets: Datasets[Any]
    mpu: ModelParallelUnit

    def batches(self, consumed_samples: int) -> Iterator[Sequence[TrainingBatch]]:
        """For each global batch from `consumed_samples` on, this rank's micro-batches."""
        assert self.datasets.train is not None
        return rank_batches(self.run, self.datasets.train, self.mpu, consumed_samples=consumed_samples)

    def evaluate(self, engine: TrainEngine, split: str) -> Iterator[Evaluation]:
        """The losses of each set of a split."""
        for name, dataset in {"valid": self.datasets.valid, "test": self.datasets.test}[split].items():
            yield Evaluation(name, mean_losses(self.run, engine, dataset, self.mpu))

    def judge(self, evaluations: Sequence[Evaluation]) -> Judgement:  # noqa: ARG002 - see below
        """Checkpoints of pretraining are not compared: the last one counts."""
        return UNJUDGED
