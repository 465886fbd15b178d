"""`ZeroTrainEngine`: the whole model in each tensor-parallel group, under ZeRO 0 to 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from megatron_ds.data.batch import TrainingBatch
from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase
from megatron_ds.models import SequentialModel


class ZeroTrainEngine(DeepSpeedEngineBase):
    """Runs a `SequentialModel`, for a pipeline size of one."""

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

    def _run_step(self, batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]) -> None:
        engine = self.deepspeed_engine
        engine.train()
        for batch, batch_targets in zip(batches, targets, strict=True):
            engine.backward(self._losses(engine(batch.inputs), batch_targets))
            engine.step()  # updates after the last micro-batch only

    @torch.no_grad()
    def _run_forward(self, batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]) -> None:
        engine = self.deepspeed_engine
        engine.eval()
        for batch, batch_targets in zip(batches, targets, strict=True):
            self._losses(engine(batch.inputs), batch_targets)
        engine.train()
