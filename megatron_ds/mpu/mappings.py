"""The moves between replicated and split activations, each with the gradient that makes it exact.

Notation of the Megatron-LM paper (Shoeybi et al. 2019, section 3): `f` is `copy_to_tensor_parallel`, `g` is
`reduce_from_tensor_parallel`. Every function returns its input unchanged when the tensor-parallel size is one.

With sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
section 4.2.2) each rank keeps its slice of the sequence between split layers: `gather_sequence` and
`reduce_scatter_sequence` (the paper's g and its conjugate) take the places of f and g.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from megatron_ds.mpu.unit import ModelParallelUnit


def _all_reduce(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    summed = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=mpu.tp_group)
    return summed


def _own_slice(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    return tensor.chunk(mpu.tp_size, dim=-1)[mpu.tp_rank].contiguous()


def _all_gather(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    slices = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(mpu.tp_size)]
    dist.all_gather(slices, tensor.contiguous(), group=mpu.tp_group)
    return torch.cat(slices, dim=-1)


def _gather_first(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    whole = tensor.new_empty(tensor.shape[0] * mpu.tp_size, *tensor.shape[1:])
    dist.all_gather_into_tensor(whole, tensor.contiguous(), group=mpu.tp_group)
    return whole


def _reduce_scatter_first(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    own = tensor.new_empty(tensor.shape[0] // mpu.tp_size, *tensor.shape[1:])
    dist.reduce_scatter_tensor(own, tensor.contiguous(), group=mpu.tp_group)
    return own


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
        ctx.mpu = mpu
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradients[0], ctx.mpu), None


class _Reduce(Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
        return _all_reduce(tensor, mpu)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
        ctx.mpu = mpu
        return _own_slice(tensor, mpu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradients[0], ctx.mpu), None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
        ctx.mpu = mpu
        return _all_gather(tensor, mpu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _own_slice(gradients[0], ctx.mpu), None


class _GatherSequence(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
        ctx.mpu = mpu
        return _gather_first(tensor, mpu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter_first(gradients[0], ctx.mpu), None


class _ReduceScatterSequence(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
        ctx.mpu = mpu
        return _reduce_scatter_first(tensor, mpu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gather_first(gradients[0], ctx.mpu), None


def _apply(function: type[Function], tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    if mpu.tp_size == 1:
        return tensor
    result: Tensor = function.apply(tensor, mpu)  # type: ignore[no-untyped-call]
    return result


def copy_to_tensor_parallel(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Hands a replicated activation to split weights: identity forward, sum of the gradients backward."""
    return _apply(_Copy, tensor, mpu)


def reduce_from_tensor_parallel(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Sums the ranks' partial results: all-reduce forward, identity backward."""
    return _apply(_Reduce, tensor, mpu)


def scatter_to_tensor_parallel(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Keeps this rank's slice of the last dimension: ``[..., H] -> [..., H/tp]``; gathers the gradients backward."""
    return _apply(_Scatter, tensor, mpu)


def gather_from_tensor_parallel(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Puts the slices of the last dimension together: ``[..., H/tp] -> [..., H]``; slices the gradient backward."""
    return _apply(_Gather, tensor, mpu)


def gather_sequence(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Puts the slices of a sequence together: ``[S/tp, ...] -> [S, ...]``; backward, sums gradients and slices them."""
    return _apply(_GatherSequence, tensor, mpu)


def reduce_scatter_sequence(tensor: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Sums the ranks' partial results and keeps this rank's slice of the sequence: ``[S, ...] -> [S/tp, ...]``."""
    return _apply(_ReduceScatterSequence, tensor, mpu)


def enter_split_layers(hidden: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Hands the residual stream to split weights: ``[S or S/tp, ...] -> [S, ...]``."""
    return gather_sequence(hidden, mpu) if mpu.sequence_parallel else copy_to_tensor_parallel(hidden, mpu)


def leave_split_layers(partial_sum: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """Sums partial results into the residual stream: ``[S, ...] -> [S or S/tp, ...]``."""
    if mpu.sequence_parallel:
        return reduce_scatter_sequence(partial_sum, mpu)
    return reduce_from_tensor_parallel(partial_sum, mpu)


def shared_weight(weight: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """A whole weight that works on the residual stream.

    With sequence parallelism each rank applies it to its own slice of the sequence, and the gradients are summed.
    """
    return copy_to_tensor_parallel(weight, mpu) if mpu.sequence_parallel else weight
