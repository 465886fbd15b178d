"""What a run trains on and is judged by: pretraining's token files, or the examples of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from megatron_ds.data import TrainingOrder
from megatron_ds.data.batch import TrainingBatch
from megatron_ds.engine.base import TrainEngine
from megatron_ds.engine.distributed import Joined
from megatron_ds.models import LayerDef
from megatron_ds.mpu import ModelParallelUnit


@dataclass(frozen=True)
class Evaluation:
    """What came of one validation or test set.

    Attributes:
        name: of the set in its split.
        losses: by name, each a mean over its labels.
        metrics: of a task, by name.
    """

    name: str
    losses: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """How good a run is at one step, as its checkpoint says.

    Attributes:
        score: one number by which checkpoints are compared, the higher the better; None where there is none.
        metrics: all metrics, as ``set.metric``.
    """

    score: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


UNJUDGED = Judgement()


class Samples(Protocol):
    """The data of a job, opened. Every method is collective: all ranks call it."""

    def batches(self, consumed_samples: int) -> Iterator[Sequence[TrainingBatch]]:
        """For each global batch from `consumed_samples` on, this rank's micro-batches."""

    def evaluate(self, engine: TrainEngine, split: str) -> Iterator[Evaluation]:
        """Evaluates every set of a split, ``valid`` or ``test``, one after the other."""

    def judge(self, evaluations: Sequence[Evaluation]) -> Judgement:
        """What the evaluations of the validation sets say about the model."""


class TrainingJob(Protocol):
    """What `megatron_ds.training.run` trains."""

    def layers(self, mpu: ModelParallelUnit) -> list[LayerDef]:
        """The model's list of layers."""

    def order(self) -> TrainingOrder | None:
        """What the order of the samples depends on."""

    def open(self, joined: Joined, mpu: ModelParallelUnit, progress: Mapping[str, int]) -> Samples:
        """Opens the data.

        Args:
            joined: what the processes share.
            mpu: where this rank sits.
            progress: step and consumed samples that the run begins at; empty for 0.
        """

    def begin(self, engine: TrainEngine) -> list[str]:
        """Gives a new run what it begins with, where that is more than random weights. Collective.

        Returns:
            What that was, as lines for the log.
        """
