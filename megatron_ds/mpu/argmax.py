"""The likeliest token of a vocabulary that is split over ranks, without gathering the logits."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.mpu.unit import ModelParallelUnit


def vocab_parallel_argmax(logits: Tensor, vocab_size: int, mpu: ModelParallelUnit) -> Tensor:
    """The id with the highest score, the first of several.

    Args:
        logits: ``[..., V/tp]``, this rank's slice of the scores, padding columns included.
        vocab_size: ids in use; columns from here on are padding and are never chosen.
        mpu: where this rank sits.

    Returns:
        ``[...]`` int64, equal on all ranks of the tensor-parallel group.
    """
    columns = logits.shape[-1]
    first_column = mpu.tp_rank * columns
    places = torch.arange(first_column, first_column + columns, device=logits.device)
    scores = logits.float().masked_fill(places >= vocab_size, -torch.inf)
    best = scores.max(dim=-1)
    ids = best.indices + first_column
    if mpu.tp_size == 1:
        return ids
    # Ids have more digits than fp32 holds, so scores and ids travel by themselves.
    all_scores = [torch.empty_like(best.values) for _ in range(mpu.tp_size)]
    all_ids = [torch.empty_like(ids) for _ in range(mpu.tp_size)]
    dist.all_gather(all_scores, best.values.contiguous(), group=mpu.tp_group)
    dist.all_gather(all_ids, ids.contiguous(), group=mpu.tp_group)
    # Of equal scores the first rank's, whose ids are the smaller ones.
    winner = torch.stack(all_scores).argmax(dim=0, keepdim=True)
    return torch.stack(all_ids).gather(0, winner)[0]
