"""The feed-forward half of a transformer layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.mpu import ColumnParallelLinear, ModelParallelUnit, RowParallelLinear


def _gelu_tanh(values: Tensor) -> Tensor:
    return F.gelu(values, approximate="tanh")


def _squared_relu(values: Tensor) -> Tensor:
    return F.relu(values).square()


def _unchanged(values: Tensor) -> Tensor:
    return values


# Of a gated MLP, the function of the gate (Shazeer 2020, "GLU Variants Improve Transformer", section 2).
_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": _gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "squared_relu": _squared_relu,
    "silu": F.silu,
    "geglu": F.gelu,
    "swiglu": F.silu,
    "reglu": F.relu,
    "liglu": _unchanged,
}


class ParallelMLP(nn.Module):
    """``W2 f(W1 x)``, or gated ``W2 (f(Wg x) * (Wv x))``, with the inner width split over the tensor-parallel ranks.

    ``dense_h_to_4h`` is W1, or Wg and Wv in one matrix; ``dense_4h_to_h`` is W2.

    Args:
        config: the architecture.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__()
        hidden_size, ffn_size, bias = config.hidden_size, config.ffn_size, not config.disable_bias_linear
        self.function = _FUNCTIONS[config.activation]
        self.is_gated = config.is_gated
        self.dense_h_to_4h = ColumnParallelLinear(
            hidden_size,
            2 * ffn_size if self.is_gated else ffn_size,
            mpu,
            init_std=config.matrix_std(hidden_size, ffn_size) * config.branch_init_gain,
            bias=bias,
            kind="gated_pair" if self.is_gated else "column",
        )
        self.dense_4h_to_h = RowParallelLinear(
            ffn_size, hidden_size, mpu, init_std=config.output_std(ffn_size), bias=bias
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """``[S, B, H] -> [S, B, H]``."""
        inner = self.dense_h_to_4h(hidden)
        if self.is_gated:
            gate, value = inner.chunk(2, -1)
            inner = self.function(gate) * value
        else:
            inner = self.function(inner)
        output: Tensor = self.dense_4h_to_h(inner)
        return output
