"""The mean over the global batch's tokens, written as a weight on each token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.data.batch import Batch
from megatron_ds.mpu import ModelParallelUnit


def token_weights(batches: Sequence[Batch], mpu: ModelParallelUnit) -> tuple[list[Tensor], Tensor]:
    """Weights that make DeepSpeed's averages come out as one mean over all tokens that count.

    DeepSpeed divides by the number of micro-batches m and by the data-parallel size d, whatever a micro-batch
    holds. With weight ``mask * m * d / n`` on each token, n being the number of tokens that count in the global
    batch, what is left after those divisions is ``sum(mask * loss) / n``: independent of how the batch is cut.

    Args:
        batches: this rank's micro-batches, on the device that computes.
        mpu: where this rank sits.

    Returns:
        A weight tensor ``[B, S]`` for each micro-batch, and n as a scalar tensor.
    """
    count = torch.stack([batch.loss_mask.sum(dtype=torch.float64) for batch in batches]).sum()
    if mpu.dp_size > 1:
        dist.all_reduce(count, group=mpu.dp_group)
    # A batch in which nothing counts has loss zero, not 0/0.
    factor = (len(batches) * mpu.dp_size / count.clamp(min=1)).to(torch.float32)
    return [batch.loss_mask * factor for batch in batches], count
