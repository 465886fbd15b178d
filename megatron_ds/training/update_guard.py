"""Ends a run that no longer makes updates, instead of letting it count steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from megatron_ds.checkpoint import find_checkpoint
from megatron_ds.config.blocks import CheckpointConfig, TrainingConfig
from megatron_ds.data.batch import TrainingBatch
from megatron_ds.engine.base import StepResult, TrainEngine
from megatron_ds.errors import CheckpointError, Problem, TrainingError


class UpdateGuard:
    """Looks at every step before anything is saved.

    The gradient norm is one number for all ranks, and not finite as soon as one rank's loss or gradient is not. So all
    ranks come to the same verdict without asking each other.

    Args:
        training: the precision, and how many steps in a row fp16 may skip.
        checkpoint: where checkpoints are.
    """

    def __init__(self, training: TrainingConfig, checkpoint: CheckpointConfig) -> None:
        self._training = training
        self._checkpoint = checkpoint
        self._skipped_in_a_row = 0

    def check(self, engine: TrainEngine, batches: Sequence[TrainingBatch], result: StepResult) -> None:
        """Takes note of a step.

        Args:
            engine: after the step.
            batches: this rank's micro-batches of the step.
            result: of the step.

        Raises:
            TrainingError: in fp32 and bf16, the gradient is not finite; in fp16, too many steps in a row were skipped.
                On all ranks.
        """
        if not result.skipped and math.isfinite(result.grad_norm):
            self._skipped_in_a_row = 0
            return
        self._skipped_in_a_row += 1
        step = engine.progress.step
        if not self._training.fp16:
            raise TrainingError(
                Problem(
                    f"step {step}: the gradient is not finite (norm {result.grad_norm}); "
                    f"{_where(engine, batches, result)}",
                    advice=f"{self._last_checkpoint()}; {_WAYS_OUT}",
                )
            )
        if self._skipped_in_a_row >= self._training.max_skipped_steps:
            raise TrainingError(
                Problem(
                    f"step {step}: fp16 skipped {self._skipped_in_a_row} steps in a row, the last one with a "
                    f"loss scale of {result.loss_scale:g}; {_where(engine, batches, result)}",
                    advice=f"{self._last_checkpoint()}; {_WAYS_OUT}; bf16 needs no loss scale",
                )
            )

    def _last_checkpoint(self) -> str:
        for folder in (self._checkpoint.save, self._checkpoint.load):
            if folder is not None:
                try:
                    found = find_checkpoint(Path(folder))
                except CheckpointError:
                    continue
                return f"go on from {found.folder / found.tag}, the last checkpoint"
        return "there is no checkpoint"


_WAYS_OUT = "try a lower learning rate or a longer warm-up, or look at this step's samples with megatron-ds data show"


def _where(engine: TrainEngine, batches: Sequence[TrainingBatch], result: StepResult) -> str:
    """Whether the numbers broke in the forward or in the backward pass, and in which layer."""
    loss = float(result.loss)
    layer = engine.first_not_finite(batches)
    if layer is not None:
        return f"in the forward pass, {layer} is the first layer whose output is not finite (loss {loss})"
    if math.isfinite(loss):
        return f"the loss is finite ({loss:.4f}), so it is the backward pass"
    return f"neither is the loss ({loss}), though every layer's output is: look at the loss"
