"""Our own gradient norm and clipping, for the one case in which DeepSpeed's is wrong: ZeRO stage 0.

There DeepSpeed's clipping leaves out the unsplit parameters of later pipeline stages (docs/deepspeed.md). With
ZeRO 1 to 3 its own norm is right, and used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatron_ds.mpu import ModelParallelUnit, shard_spec


def global_grad_norm(parameters: Sequence[nn.Parameter], mpu: ModelParallelUnit) -> Tensor:
    """L2 norm of the gradient of the whole model, with every parameter counted once.

    Shards count on each rank, replicated parameters on the first tensor-parallel rank only, and a tied weight on the
    first stage that holds it (DeepSpeed marks the other copies `ds_pipe_replicated`).

    Args:
        parameters: this rank's parameters; their gradients are already summed over data-parallel ranks.
        mpu: where this rank sits.

    Returns:
        A scalar tensor, equal on all ranks.
    """
    norms = [
        torch.linalg.vector_norm(parameter.grad, dtype=torch.float32)
        for parameter in parameters
        if parameter.grad is not None
        and not getattr(parameter, "ds_pipe_replicated", False)
        and (shard_spec(parameter).dim is not None or mpu.tp_rank == 0)
    ]
    total = torch.stack(norms).square().sum() if norms else torch.zeros((), device=mpu.device)
    if mpu.tp_size * mpu.pp_size > 1:
        dist.all_reduce(total, group=mpu.model_parallel_group)
    return total.sqrt()


class ClipBeforeStep:
    """Measures the norm and clips just before an optimizer steps.

    Args:
        optimizer: a plain torch optimizer, whose parameters are the model's own.
        max_norm: largest norm; 0 leaves gradients alone.
        mpu: where this rank sits.

    Attributes:
        last_norm: the norm before clipping in the latest step.
        skipped: it was not finite, so the latest step left the parameters alone.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, max_norm: float, mpu: ModelParallelUnit) -> None:
        self.last_norm = torch.zeros((), device=mpu.device)
        self.skipped = False
        self._max_norm = max_norm
        self._mpu = mpu
        optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.last_norm = global_grad_norm(parameters, self._mpu)
        self.skipped = not bool(self.last_norm.isfinite())
        if self.skipped:
            # As ZeRO does. Without a gradient, the optimizer passes over a parameter.
            optimizer.zero_grad(set_to_none=True)
        elif self._max_norm > 0:
            # The same rule as torch.nn.utils.clip_grad_norm_, with its epsilon.
            factor = (self._max_norm / (self.last_norm + 1e-6)).clamp(max=1.0)
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
