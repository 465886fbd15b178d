"""The feed-forward half of a transformer layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.mpu import ColumnParallelLinear, ModelParallelUnit, RowParallelLinear


class ParallelMLP(nn.Module):
    """``dense_4h_to_h(gelu(dense_h_to_4h(x)))`` with the inner width split over the tensor-parallel ranks.

    GELU is the tanh approximation, as in GPT-2.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        output_std: standard deviation of the output projection's initial weights.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, *, output_std: float) -> None:
        super().__init__()
        hidden_size, ffn_size = config.hidden_size, config.ffn_size
        self.dense_h_to_4h = ColumnParallelLinear(hidden_size, ffn_size, mpu, init_std=config.init_method_std)
        self.dense_4h_to_h = RowParallelLinear(ffn_size, hidden_size, mpu, init_std=output_std)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[S, B, H] -> [S, B, H]``."""
        output: Tensor = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(hidden), approximate="tanh"))
        return output
