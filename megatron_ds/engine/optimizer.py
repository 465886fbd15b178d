"""AdamW: PyTorch's own, or DeepSpeed's CPU version where the optimizer state is offloaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from megatron_ds.config.blocks import OptimizerConfig
from megatron_ds.optim.param_groups import parameter_groups


def offloads_optimizer(deepspeed_config: dict[str, Any]) -> bool:
    """Whether the optimizer state lives in host memory."""
    offload = deepspeed_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    return bool(offload.get("device", "none") != "none")


def build_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, *, on_cuda: bool, offload: bool
) -> torch.optim.Optimizer:
    """AdamW over this rank's parameters, with decay on matrices only.

    Args:
        parameters: this rank's parameters, each once.
        config: rates and betas.
        on_cuda: use the fused kernel, which PyTorch ships compiled.
        offload: the state lives in host memory: DeepSpeed's CPUAdam, which is compiled on first use.
    """
    groups = parameter_groups(parameters, config.weight_decay)
    common: dict[str, Any] = {"lr": config.lr, "betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_eps}
    if offload:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer: torch.optim.Optimizer = DeepSpeedCPUAdam(groups, adamw_mode=True, **common)
        return optimizer
    return torch.optim.AdamW(groups, fused=True if on_cuda else None, **common)


def catch_up(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Brings DeepSpeed's CPUAdam to where it was when a checkpoint was saved.

    Its compiled part multiplies the powers of beta up from update to update in fp32, but starts with `pow` after a
    load. Both round differently, so a resumed run would not be the straight one to the bit. Updates of a single number,
    as many as there were, make the same powers again: some microseconds each.

    Args:
        optimizer: any; nothing happens to others.
        updates: updates made before the checkpoint.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    if not isinstance(optimizer, DeepSpeedCPUAdam):
        return
    beta1, beta2 = optimizer.param_groups[0]["betas"]
    numbers = [torch.zeros(1) for _ in range(4)]
    for update in range(1, updates + 1):
        optimizer.ds_opt_adam.adam_update(optimizer.opt_id, update, 0.0, beta1, beta2, 1.0, 0.0, True, *numbers)
