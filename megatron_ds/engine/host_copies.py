"""Copies of states in host memory, made fast enough that training only stops for the copying."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

# What tells two tensors with the same numbers in the same memory: they stay one in the copy.
_View = tuple[int, int, torch.Size, tuple[int, ...], torch.dtype]


class HostCopies:
    """Memory for copies of states, used again from one checkpoint to the next.

    Args:
        pin_memory: uses page-locked memory.
    """

    def __init__(self, *, pin_memory: bool) -> None:
        self._pin_memory = pin_memory
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._on_gpu = False

    def copy(self, state: Any, name: str) -> Any:
        """Copies a state: containers, tensors, and whatever else it holds.

        Args:
            state: nested dicts, lists and tuples.
            name: of the state: its tensors take the memory that those of this name had before.

        Returns:
            The copy. The numbers of tensors on a GPU are there after `wait`.
        """
        return self._copy(state, name, {})

    def wait(self) -> None:
        """Waits until all numbers are copied."""
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()
            self._on_gpu = False

    def _copy(self, value: Any, name: str, seen: dict[_View, Tensor]) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(value, name, seen)
        if isinstance(value, dict):
            new = copy.copy(value)  # an OrderedDict of weights has attributes of its own
            for key, item in value.items():
                new[key] = self._copy(item, name, seen)
            return new
        if isinstance(value, list) or type(value) is tuple:
            return type(value)(self._copy(item, name, seen) for item in value)
        return copy.deepcopy(value)

    def _copy_tensor(self, tensor: Tensor, name: str, seen: dict[_View, Tensor]) -> Tensor:
        source = tensor.detach()
        place = source.untyped_storage().data_ptr(), int(source.storage_offset())
        view: _View = (*place, source.shape, source.stride(), source.dtype)
        if view not in seen or not source.numel():
            buffer = self._buffer((name, len(seen)), source)
            buffer.copy_(source, non_blocking=True)
            self._on_gpu |= source.is_cuda
            seen[view] = buffer
        copied = seen[view]
        return nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied

    def _buffer(self, key: tuple[str, int], like: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != like.dtype:
            buffer = torch.empty(like.shape, dtype=like.dtype, pin_memory=self._pin_memory)
            self._buffers[key] = buffer
        return buffer
