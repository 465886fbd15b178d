"""Losses over the global batch: each is a mean over its own labels, however the batch is cut; training takes their sum.

A mean is written as a weight on each label, so that DeepSpeed's averages over micro-batches and ranks come out as one
mean over all labels that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.data.batch import TrainingBatch
from megatron_ds.models import LossFunction
from megatron_ds.mpu import ModelParallelUnit


class LossSum:
    """The sum of a model's losses, which keeps what each of them came to, and on demand what the model returned.

    Args:
        losses: the losses by name.
        mpu: where this rank sits.
    """

    def __init__(self, losses: Mapping[str, LossFunction], mpu: ModelParallelUnit) -> None:
        self.names = tuple(losses)
        self._losses = losses
        self._mpu = mpu
        self._totals = self._zeros()
        self._outputs: list[Tensor] | None = None

    @contextmanager
    def keeping_outputs(self) -> Iterator[list[Tensor]]:
        """Inside the block, adds what the model returns for each micro-batch to the list; on the last stage."""
        kept: list[Tensor] = []
        self._outputs = kept
        try:
            yield kept
        finally:
            self._outputs = None

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self.names), device=self._mpu.device)

    def __call__(self, outputs: Any, targets: Sequence[Tensor]) -> Tensor:
        """One micro-batch's share of the sum, a scalar.

        Args:
            outputs: what the last layer returned.
            targets: labels and weights of the first loss, those of the second one, and so on.
        """
        if self._outputs is not None:
            assert isinstance(outputs, Tensor), "models with one output"
            self._outputs.append(outputs.detach().float())
        pairs = zip(targets[::2], targets[1::2], strict=True)
        parts = torch.stack([loss(outputs, pair) for loss, pair in zip(self._losses.values(), pairs, strict=True)])
        self._totals += parts.detach()
        return parts.sum()

    @torch.no_grad()
    def take(self, num_micro_batches: int) -> dict[str, Tensor]:
        """The global batch's losses, on all ranks, and a new start. Every rank calls it after its micro-batches.

        Args:
            num_micro_batches: that each rank ran.
        """
        mpu, totals = self._mpu, self._totals / num_micro_batches
        self._totals = self._zeros()
        if mpu.dp_size > 1:
            dist.all_reduce(totals, group=mpu.dp_group)
            totals /= mpu.dp_size
        if mpu.pp_size > 1:
            # The last stage has them; the others have zeros.
            dist.broadcast(totals, group=mpu.pp_group, group_src=mpu.pp_size - 1)
        return dict(zip(self.names, totals.unbind(), strict=True))


@torch.no_grad()
def outputs_in_order(kept: Sequence[Tensor], rows: int, micro_batches: int, mpu: ModelParallelUnit) -> Tensor:
    """What the model returned for a global batch, in the order of its samples, on all ranks.

    Args:
        kept: of this rank's micro-batches in turn, ``[rows, C]`` each, on the last stage; nothing on the others.
        rows: of one micro-batch.
        micro_batches: that each rank ran.
        mpu: where this rank sits.

    Returns:
        ``[micro_batches x dp_size x rows, C]``, fp32: micro-batch m of data-parallel rank d is number
        ``m x dp_size + d``, as the loader deals them.
    """
    width = torch.tensor(kept[0].shape[1] if kept else 0, device=mpu.device)
    if mpu.pp_size > 1:
        dist.broadcast(width, group=mpu.pp_group, group_src=mpu.pp_size - 1)
    # [m, 1, rows, C] -> [m, dp, rows, C]
    own = torch.stack(list(kept)) if kept else torch.empty(micro_batches, rows, int(width), device=mpu.device)
    everyone = [torch.empty_like(own) for _ in range(mpu.dp_size)]
    if mpu.dp_size > 1:
        dist.all_gather(everyone, own, group=mpu.dp_group)
    else:
        everyone = [own]
    outputs = torch.stack(everyone, dim=1).flatten(0, 2)
    if mpu.pp_size > 1:
        dist.broadcast(outputs, group=mpu.pp_group, group_src=mpu.pp_size - 1)
    return outputs


def weighted_targets(
    batches: Sequence[TrainingBatch], names: Sequence[str], mpu: ModelParallelUnit
) -> tuple[list[tuple[Tensor, ...]], dict[str, Tensor]]:
    """Weights that make DeepSpeed's averages come out as one mean over all labels that count.

    DeepSpeed divides by the number of micro-batches m and by the data-parallel size d, whatever a micro-batch
    holds. With weight ``mask * m * d / n`` on each label, n being the number of labels that count in the global
    batch, what is left after those divisions is ``sum(mask * loss) / n``: independent of how the batch is cut.

    Args:
        batches: this rank's micro-batches, on the device that computes.
        names: of the losses.
        mpu: where this rank sits.

    Returns:
        For each micro-batch labels and weights of each loss in turn, and n of each loss as a scalar tensor.
    """
    masks = [[batch.targets[name][1].sum(dtype=torch.float64) for name in names] for batch in batches]
    counts = torch.stack([torch.stack(each) for each in masks]).sum(0)
    if mpu.dp_size > 1:
        dist.all_reduce(counts, group=mpu.dp_group)
    # A batch in which nothing counts has loss zero, not 0/0.
    factors = (len(batches) * mpu.dp_size / counts.clamp(min=1)).to(torch.float32)
    weighted = []
    for batch in batches:
        pairs = [batch.targets[name] for name in names]
        weighted.append(
            tuple(
                tensor
                for (labels, mask), factor in zip(pairs, factors.unbind(), strict=True)
                for tensor in (labels, mask * factor)
            )
        )
    return weighted, dict(zip(names, counts.unbind(), strict=True))
