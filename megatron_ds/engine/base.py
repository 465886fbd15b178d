"""What the training loop knows of an engine: the `TrainEngine` protocol and its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megatron_ds.checkpoint.pending import PendingFiles
from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.data.batch import TrainingBatch

# The rate of the n-th update, counted from 1.
LearningRate = Callable[[int], float]


@dataclass(frozen=True)
class TrainProgress:
    """How far a run has come. Saved with every checkpoint.

    Attributes:
        step: optimizer steps, skipped ones included.
        skipped_steps: steps without an update, because the gradient overflowed.
        consumed_samples: training samples seen.
    """

    step: int = 0
    skipped_steps: int = 0
    consumed_samples: int = 0

    def after_step(self, samples: int, skipped: bool) -> TrainProgress:
        """The progress one step later."""
        return TrainProgress(self.step + 1, self.skipped_steps + skipped, self.consumed_samples + samples)

    def to_json(self) -> dict[str, int]:
        """For the checkpoint."""
        return asdict(self)


@dataclass(frozen=True)
class StepResult:
    """One optimizer step.

    Attributes:
        losses: each of the model's losses by name, a mean over the labels of the global batch; scalar tensors, so that
            reading them is the reader's choice.
        grad_norm: global gradient norm before clipping, every parameter counted once.
        learning_rate: the rate of this step.
        skipped: no update was made, because the gradient was not finite; equal on all ranks.
        loss_scale: fp16's scale in this step; 1 otherwise.
    """

    losses: Mapping[str, Tensor]
    grad_norm: float
    learning_rate: float
    skipped: bool
    loss_scale: float

    @property
    def loss(self) -> Tensor:
        """What the step trained on: the sum of the losses."""
        return torch.stack(list(self.losses.values())).sum()


@dataclass(frozen=True)
class EvalResult:
    """The losses of some batches that were not trained on.

    Attributes:
        losses: by name, a mean over their labels, over all data-parallel ranks; scalar tensors.
        counts: how many labels that were, for each loss; scalar tensors.
        outputs: what the model returned, where it was asked for: a row for each sequence, in the order of the global
            batch, fp32 ``[sequences, C]``.
    """

    losses: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]
    outputs: Tensor | None = None

    @property
    def loss(self) -> Tensor:
        """The sum of the losses."""
        return torch.stack(list(self.losses.values())).sum()


class TrainEngine(Protocol):
    """Runs a model over processes. Every method is collective: all ranks call it."""

    progress: TrainProgress

    def train_step(self, batches: Sequence[TrainingBatch]) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches of one global batch."""
        ...

    def evaluate(self, batches: Sequence[TrainingBatch], *, outputs: bool = False) -> EvalResult:
        """The losses of the ranks' micro-batches, without dropout and gradients; with `outputs` of the model too."""
        ...

    def save(self, folder: Path, *, in_background: bool = False) -> PendingFiles:
        """Writes this rank's files of ``folder/global_step<N>``; `in_background` leaves that to what is returned."""
        ...

    def load(
        self, checkpoint: CheckpointReader, *, optimizer: bool = True, progress: bool = True, dropout: bool = True
    ) -> None:
        """Restores weights and, where wanted, optimizer, `progress` and dropout from a checkpoint of any layout."""
        ...

    def load_weights(self, weights: ModelWeights, names: Collection[str]) -> None:
        """Takes some of the weights from elsewhere; the optimizer's state and `progress` stay."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Canonical names and parameters of this rank; a tied weight appears on each stage that holds a copy."""
        ...

    def stages(self) -> list[range]:
        """Places in the model's list of layers that each pipeline stage holds."""
        ...

    def differing_replicas(self) -> list[str]:
        """Names of this rank's uncut parameters whose copies on tensor-parallel ranks are not equal to the bit."""
        ...

    def first_not_finite(self, batches: Sequence[TrainingBatch]) -> str | None:
        """Runs the forward pass on a step's micro-batches; the first layer whose output is not finite, and its rank."""
        ...

    def loss_scaler_state(self) -> dict[str, float]:
        """fp16: the state of dynamic loss scaling, for the checkpoint's manifest; empty otherwise."""
        ...

    def facts(self) -> dict[str, Any]:
        """What runs here, for the start-up message: engine, optimizer, dtypes."""
        ...
