"""Which parameters decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from megatron_ds.mpu import shard_spec


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Groups for AdamW: matrices and embeddings decay, biases and norms (one dimension) do not.

    Args:
        parameters: this rank's parameters, each once.
        weight_decay: decay of the first group.

    Returns:
        At most two groups, none of them empty.
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in parameters:
        (decayed if len(shard_spec(parameter).full_shape) > 1 else plain).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
