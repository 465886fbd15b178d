"""`ZeroTrainEngine`: the whole model in each tensor-parallel group, under ZeRO 0 to 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megatron_ds.data.batch import Batch
from megatron_ds.engine.base import EvalResult, LossFunction
from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase, average_over_data_parallel
from megatron_ds.engine.loss_weights import token_weights
from megatron_ds.models import SequentialModel


class ZeroTrainEngine(DeepSpeedEngineBase):
    """Runs a `SequentialModel`, for a pipeline size of one.

    Args:
        loss: from logits, labels and token weights to a scalar.
        *arguments: see `DeepSpeedEngineBase`.
        **named_arguments: see `DeepSpeedEngineBase`.
    """

    def __init__(self, loss: LossFunction, *arguments: Any, **named_arguments: Any) -> None:
        super().__init__(*arguments, **named_arguments)
        self._loss = loss

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Canonical names and parameters of this rank: the module's own names."""
        model = self.deepspeed_engine.module
        assert isinstance(model, SequentialModel)
        return model.named_parameters()

    def stages(self) -> list[range]:
        """All layers, in the one stage that there is."""
        model = self.deepspeed_engine.module
        assert isinstance(model, SequentialModel)
        return [range(model.num_layers)]

    def _run_step(self, batches: Sequence[Batch]) -> Tensor:
        engine = self.deepspeed_engine
        engine.train()
        weights, _ = token_weights(batches, self.mpu)
        total = torch.zeros((), device=self.mpu.device)
        for batch, batch_weights in zip(batches, weights, strict=True):
            loss = self._loss(engine(batch.inputs), (batch.labels, batch_weights))
            engine.backward(loss)
            engine.step()  # updates after the last micro-batch only
            total += loss.detach()
        return average_over_data_parallel(total / len(batches), self.mpu)

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Batch]) -> EvalResult:
        """The loss of this rank's micro-batches, without dropout and without gradients."""
        engine = self.deepspeed_engine
        engine.eval()
        batches = self._on_device(batches)
        weights, tokens = token_weights(batches, self.mpu)
        total = torch.zeros((), device=self.mpu.device)
        for batch, batch_weights in zip(batches, weights, strict=True):
            total += self._loss(engine(batch.inputs), (batch.labels, batch_weights))
        engine.train()
        return EvalResult(average_over_data_parallel(total / len(batches), self.mpu), tokens)
