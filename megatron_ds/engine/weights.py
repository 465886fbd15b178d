"""The whole model's weights on one rank, by canonical name: to compare runs and layouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatron_ds.engine.base import TrainEngine
from megatron_ds.mpu import ModelParallelUnit, ShardSpec, shard_spec


def full_weights(engine: TrainEngine, mpu: ModelParallelUnit) -> dict[str, Tensor] | None:
    """Puts all shards of all stages together.

    Meant for small models: everything is held in rank 0's host memory at once.

    Args:
        engine: the engine; every rank must call.
        mpu: where this rank sits.

    Returns:
        Canonical name → whole parameter on rank 0, without vocabulary padding; None on other ranks.
    """
    mine: dict[str, tuple[ShardSpec, Tensor]] = {}
    for name, parameter in engine.named_parameters():
        partitioned = [parameter] if hasattr(parameter, "ds_id") else []
        with deepspeed.zero.GatheredParameters(partitioned):
            mine[name] = (shard_spec(parameter), parameter.detach().cpu().clone())
    everyone: list[Any] = [None] * mpu.topology.world_size
    dist.all_gather_object(everyone, mine)
    if mpu.global_rank != 0:
        return None
    shards: dict[str, tuple[ShardSpec, list[Tensor]]] = {}
    for stage in range(mpu.pp_size):
        for tp_rank in range(mpu.tp_size):
            for name, (spec, shard) in everyone[mpu.topology.rank(stage, 0, tp_rank)].items():
                shards.setdefault(name, (spec, []))[1].append(shard)
    # A tied weight comes from two stages: the first tp_size shards are those of the stage that owns it.
    return {name: spec.unshard(parts[: mpu.tp_size]) for name, (spec, parts) in shards.items()}


def replicas_differ(parameters: Iterable[tuple[str, nn.Parameter]], mpu: ModelParallelUnit) -> list[str]:
    """Names of replicated parameters whose copies on tensor-parallel ranks are not equal to the bit.

    Args:
        parameters: this rank's, by canonical name; every rank of the group must call.
        mpu: where this rank sits.
    """
    different = []
    for name, parameter in parameters:
        if shard_spec(parameter).dim is None and mpu.tp_size > 1:
            partitioned = [parameter] if hasattr(parameter, "ds_id") else []
            with deepspeed.zero.GatheredParameters(partitioned):
                copies = [torch.empty_like(parameter.data) for _ in range(mpu.tp_size)]
                dist.all_gather(copies, parameter.data.contiguous(), group=mpu.tp_group)
            if not all(torch.equal(copy, copies[0]) for copy in copies):
                different.append(name)
    return different
