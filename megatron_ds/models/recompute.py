"""Activation checkpointing: run layers again in the backward pass instead of keeping their activations.

It belongs to the list of layers, not to the engine, so it works alike with and without a pipeline. DeepSpeed's own
checkpointing stays off: it also wraps embeddings, whose gradients then vanish (docs/deepspeed.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from megatron_ds.config.blocks import TrainingConfig
from megatron_ds.models.attention import ParallelAttention
from megatron_ds.models.layer_def import Activations
from megatron_ds.models.saved_inputs import CutOverTensorParallel, InHostMemory, Keep, keep_whole
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.utils.text import counted

Step = Callable[[Activations], Activations]


@dataclass(frozen=True)
class Recompute:
    """What is run again in the backward pass, and how what it starts from is kept.

    Attributes:
        granularity: `full` runs whole layers again, `selective` only the core of attention, from queries, keys and
            values to what they attend to; None keeps all activations.
        method: of `full`. `uniform`: chunks of `num_layers` layers, of which only the input is kept. `block`: each of
            the first `num_layers` layers of a stage, and no other.
        num_layers: see `method`.
        distribute_saved: of `full`: each rank of a tensor-parallel group keeps its share of the inputs.
        in_cpu: of `full`: the inputs wait in host memory.
    """

    granularity: Literal["full", "selective"] | None = None
    method: Literal["uniform", "block"] = "uniform"
    num_layers: int = 1
    distribute_saved: bool = False
    in_cpu: bool = False

    @classmethod
    def of(cls, training: TrainingConfig) -> Recompute:
        """What the options ask for."""
        return cls(
            training.recompute,
            training.recompute_method,
            training.recompute_num_layers or 1,
            training.distribute_saved_activations,
            training.checkpoint_in_cpu,
        )

    def __str__(self) -> str:
        """For the start-up message."""
        if self.granularity != "full":
            return {None: "nothing", "selective": "the core of attention"}[self.granularity]
        if self.method == "uniform":
            parts = [f"chunks of {counted(self.num_layers, 'layer')}"]
        elif self.num_layers == 1:
            parts = ["the first layer of each stage"]
        else:
            parts = [f"the first {self.num_layers} layers of each stage, or all that it has"]
        parts += ["inputs cut over tensor-parallel ranks"] if self.distribute_saved else []
        parts += ["inputs in host memory"] if self.in_cpu else []
        return ", ".join(parts)


NO_RECOMPUTE = Recompute()


def recompute_chunks(allowed: Sequence[bool], recompute: Recompute) -> list[range]:
    """The layers of one stage that are run again together.

    Args:
        allowed: for each layer of the stage, whether it may be run again.
        recompute: what is asked for.

    Returns:
        Ranges of neighbouring layers, in order; none unless whole layers are recomputed.
    """
    if recompute.granularity != "full":
        return []
    indices = [index for index, is_allowed in enumerate(allowed) if is_allowed]
    if recompute.method == "block":
        return [range(index, index + 1) for index in indices[: recompute.num_layers]]
    chunks: list[range] = []
    for index in indices:
        last = chunks[-1] if chunks else range(0)
        if last.stop == index and 0 < len(last) < recompute.num_layers:
            chunks[-1] = range(last.start, index + 1)
        else:
            chunks.append(range(index, index + 1))
    return chunks


def with_recomputation(
    steps: Sequence[Step], allowed: Sequence[bool], recompute: Recompute, mpu: ModelParallelUnit
) -> list[Step]:
    """The layers of one stage, with those that are run again together joined to one step.

    The recomputation draws the same dropout masks as the first pass, in both random streams.

    Args:
        steps: the layers, in order.
        allowed: for each layer, whether it may be run again.
        recompute: what is asked for.
        mpu: where this rank sits.
    """
    keep = _keep(recompute, mpu)
    result: list[Step] = []
    done = 0
    for chunk in recompute_chunks(allowed, recompute):
        result += steps[done : chunk.start]
        result.append(recomputed_step(_in_turn(steps[chunk.start : chunk.stop]), keep, mpu))
        done = chunk.stop
    return [*result, *steps[done:]]


def recompute_core_attention(module: nn.Module, mpu: ModelParallelUnit) -> None:
    """Makes the attention inside `module` forget what it holds between queries, keys, values and what comes out.

    Args:
        module: a layer.
        mpu: holds the random stream that differs over tensor-parallel ranks.
    """
    for part in module.modules():
        if isinstance(part, ParallelAttention):
            part.wrap_core(lambda core: _recomputed(core, keep_whole, mpu))


def _keep(recompute: Recompute, mpu: ModelParallelUnit) -> Keep:
    on_device = not recompute.in_cpu or mpu.device.type == "cpu"
    keep = keep_whole if on_device else InHostMemory(mpu.device)
    return CutOverTensorParallel(mpu, keep) if recompute.distribute_saved and mpu.tp_size > 1 else keep


def _in_turn(steps: Sequence[Step]) -> Step:
    def run(inputs: Activations) -> Activations:
        for step in steps:
            inputs = step(inputs)
        return inputs

    return run


def recomputed_step(step: Step, keep: Keep, mpu: ModelParallelUnit) -> Step:
    """`step`, which forgets all but its inputs until the backward pass, in which it runs again.

    Args:
        step: takes a tensor or a tuple of tensors.
        keep: where its inputs wait.
        mpu: holds the random stream that differs over tensor-parallel ranks.
    """
    # Autograd, and so `keep`, sees the tensors of a tuple as arguments only.
    on_tensor = _recomputed(step, keep, mpu)
    on_tuple = _recomputed(lambda *parts: step(parts), keep, mpu)

    def run(inputs: Activations) -> Activations:
        result: Activations = on_tuple(*inputs) if isinstance(inputs, tuple) else on_tensor(inputs)
        return result

    return run


def _recomputed(function: Callable[..., Any], keep: Keep, mpu: ModelParallelUnit) -> Callable[..., Any]:
    """`function`, which forgets all but its inputs in a pass that will have a backward pass."""

    def run(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*inputs)
        with _kept_by(keep):
            return checkpoint(function, *inputs, use_reentrant=False, context_fn=mpu.rng.recompute_contexts)

    return run


def _kept_by(keep: Keep) -> AbstractContextManager[Any]:
    """A context in which tensors that autograd saves are handed to `keep`.

    Inside of `checkpoint` these are its inputs: it catches all that `function` itself would save.
    """
    if keep is keep_whole:
        return nullcontext()
    # PyTorch 2.11 (2.13 no longer) has `checkpoint` save an empty tensor of its own, on the CPU, beside the inputs.
    return saved_tensors_hooks(
        lambda tensor: keep(tensor) if tensor.numel() else keep_whole(tensor), lambda restore: restore()
    )
