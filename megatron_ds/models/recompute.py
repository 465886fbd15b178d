"""Activation checkpointing: run a layer again in the backward pass instead of keeping its activations.

It belongs to the layer, not to the engine, so it works alike with and without a pipeline. DeepSpeed's own
checkpointing stays off: it also wraps embeddings, whose gradients then vanish (docs/deepspeed.md).
"""

from __future__ import annotations

from torch import nn
from torch.utils.checkpoint import checkpoint

from megatron_ds.models.layer_def import Activations
from megatron_ds.mpu import ModelParallelUnit


def recompute_in_backward(module: nn.Module, mpu: ModelParallelUnit) -> None:
    """Makes `module` forget its inner activations after each training forward pass.

    The recomputation draws the same dropout masks as the first pass, in both random streams.

    Args:
        module: a layer; its `forward` is replaced.
        mpu: holds the random stream that differs over tensor-parallel ranks.
    """
    forward = module.forward

    def recomputed_forward(*inputs: Activations) -> Activations:
        result: Activations = checkpoint(forward, *inputs, use_reentrant=False, context_fn=mpu.rng.recompute_contexts)
        return result

    module.forward = recomputed_forward
