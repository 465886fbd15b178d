"""Cross-entropy over a vocabulary that is split over ranks, without gathering the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from megatron_ds.mpu.unit import ModelParallelUnit


class _VocabParallelCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocab_size: int, mpu: ModelParallelUnit) -> Tensor:
        columns = logits.shape[-1]
        first_column = mpu.tp_rank * columns
        scores = logits.float()
        # Columns of vocabulary padding take no part in the softmax. At least one rank has a real column.
        real_columns = min(max(vocab_size - first_column, 0), columns)
        if real_columns < columns:
            scores = scores.clone() if scores is logits else scores
            scores[..., real_columns:] = -torch.inf

        maximum = scores.amax(dim=-1)
        if mpu.tp_size > 1:
            dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=mpu.tp_group)
        scores = scores - maximum.unsqueeze(-1)

        local_target = targets - first_column
        elsewhere = (local_target < 0) | (local_target >= columns)
        local_target = local_target.masked_fill(elsewhere, 0)
        target_score = scores.gather(-1, local_target.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        probabilities = scores.exp_()
        partial = torch.stack((target_score, probabilities.sum(dim=-1)))
        if mpu.tp_size > 1:
            dist.all_reduce(partial, group=mpu.tp_group)
        target_score, total = partial
        probabilities.div_(total.unsqueeze(-1))

        ctx.save_for_backward(probabilities, local_target, elsewhere)
        ctx.logits_dtype = logits.dtype
        loss: Tensor = total.log() - target_score
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, local_target, elsewhere = ctx.saved_tensors
        # d loss / d logits = softmax - one_hot(target)
        gradient = probabilities.clone()
        here = (~elsewhere).to(gradient.dtype).unsqueeze(-1)
        gradient.scatter_add_(-1, local_target.unsqueeze(-1), -here)
        gradient.mul_(gradients[0].unsqueeze(-1))
        return gradient.to(ctx.logits_dtype), None, None, None


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, vocab_size: int, mpu: ModelParallelUnit) -> Tensor:
    """Negative log-likelihood of each target.

    Args:
        logits: ``[..., V/tp]``, this rank's slice of the scores, padding columns included.
        targets: ``[...]`` int64, ids below `vocab_size`.
        vocab_size: ids in use; columns from here on are padding and have probability zero.
        mpu: where this rank sits.

    Returns:
        ``[...]`` fp32, equal on all ranks of the tensor-parallel group.
    """
    loss: Tensor = _VocabParallelCrossEntropy.apply(logits, targets, vocab_size, mpu)  # type: ignore[no-untyped-call]
    return loss
