"""Building a layer's module on the right device, in the right dtype, with or without recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from megatron_ds.models import LayerDef, Recompute, recompute_core_attention
from megatron_ds.mpu import ModelParallelUnit


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class LayerBuilder:
    """Turns `LayerDef`s into modules.

    Attributes:
        dtype: of the parameters.
        mpu: where this rank sits, with its device.
        recompute: what runs again in the backward pass; the builder sees to the core of attention.
    """

    dtype: torch.dtype
    mpu: ModelParallelUnit
    recompute: Recompute

    def __call__(self, layer: LayerDef) -> nn.Module:
        """The module of `layer`, without values in its parameters."""
        with torch.device(self.mpu.device), _default_dtype(self.dtype):
            module = layer.build()
        if self.recompute.granularity == "selective" and layer.recompute:
            recompute_core_attention(module, self.mpu)
        return module
