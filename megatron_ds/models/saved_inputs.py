"""Where the input of a recomputed layer waits for the backward pass: on the device, cut over ranks, in host memory.

A `Keep` takes a tensor in and returns the function that gives it back, equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.mpu import ModelParallelUnit

Restore = Callable[[], Tensor]
Keep = Callable[[Tensor], Restore]


def keep_whole(tensor: Tensor) -> Restore:
    """Leaves the tensor where it is."""
    return lambda: tensor


class CutOverTensorParallel:
    """Keeps this rank's share of a tensor that all ranks of the tensor-parallel group hold, and gathers it again.

    Whole numbers (document ids) stay whole: they are small.

    Args:
        mpu: where this rank sits.
        keep: where the share waits.
    """

    def __init__(self, mpu: ModelParallelUnit, keep: Keep = keep_whole) -> None:
        self._mpu = mpu
        self._keep = keep

    def __call__(self, tensor: Tensor) -> Restore:
        """Takes in a tensor; its number of elements is a multiple of the tensor-parallel size."""
        if not tensor.is_floating_point():
            return self._keep(tensor)
        assert tensor.numel() % self._mpu.tp_size == 0, "the configuration was checked before launch"
        # A copy: a view would hold on to the whole tensor.
        share = tensor.reshape(self._mpu.tp_size, -1)[self._mpu.tp_rank].clone()
        return partial(self._gather, self._keep(share), tensor.shape)

    def _gather(self, restore_share: Restore, shape: torch.Size) -> Tensor:
        share = restore_share()
        whole = share.new_empty(self._mpu.tp_size, share.numel())
        dist.all_gather(list(whole.unbind()), share, group=self._mpu.tp_group)
        return whole.view(shape)


class InHostMemory:
    """Moves tensors of a GPU to pinned host memory and back, on a stream of its own beside the computation.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda", "on a CPU everything is in host memory"
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, tensor: Tensor) -> Restore:
        """Takes in a tensor of the GPU."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        # The allocator may hand this memory out again when the copy is through, not before.
        tensor.record_stream(self._stream)
        return partial(self._fetch, host)

    def _fetch(self, host: Tensor) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            tensor = host.to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        tensor.record_stream(current)
        return tensor
