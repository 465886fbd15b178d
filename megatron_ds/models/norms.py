"""The norms of a transformer: LayerNorm and RMSNorm, whole on every tensor-parallel rank."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.mpu import ModelParallelUnit, copy_to_tensor_parallel


class LayerNorm(nn.LayerNorm):
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` over the last dimension.

    The result has the dtype of the weights, also where the input is an fp32 residual stream.

    Args:
        config: the architecture.
        size: width of the last dimension.
        mpu: where this rank sits.
        sees_own_share: each tensor-parallel rank normalises other numbers, so that the gradients of the weights are
            sums over those ranks. With sequence parallelism always.
    """

    def __init__(self, config: ModelConfig, size: int, mpu: ModelParallelUnit, *, sees_own_share: bool = False) -> None:
        super().__init__(size, eps=config.layernorm_epsilon)
        self.mpu = mpu
        self.sees_own_share = sees_own_share or mpu.sequence_parallel

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., size] -> [..., size]``."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.sees_own_share:
            weight, bias = copy_to_tensor_parallel(weight, self.mpu), copy_to_tensor_parallel(bias, self.mpu)
        normed = F.layer_norm(hidden, self.normalized_shape, weight.to(hidden.dtype), bias.to(hidden.dtype), self.eps)
        return normed.to(self.weight.dtype)


class RMSNorm(nn.RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang and Sennrich 2019). Arguments as above."""

    def __init__(self, config: ModelConfig, size: int, mpu: ModelParallelUnit, *, sees_own_share: bool = False) -> None:
        super().__init__(size, eps=config.layernorm_epsilon)
        self.mpu = mpu
        self.sees_own_share = sees_own_share or mpu.sequence_parallel

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., size] -> [..., size]``."""
        weight = copy_to_tensor_parallel(self.weight, self.mpu) if self.sees_own_share else self.weight
        normed = F.rms_norm(hidden, self.normalized_shape, weight.to(hidden.dtype), self.eps)
        return normed.to(self.weight.dtype)


Norm = LayerNorm | RMSNorm


def norm_class(config: ModelConfig) -> type[LayerNorm] | type[RMSNorm]:
    """The class of norm that the options ask for."""
    return RMSNorm if config.normalization == "RMSNorm" else LayerNorm
