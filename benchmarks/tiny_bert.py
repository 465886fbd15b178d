"""What a tiny BERT is fed with, as a function of the step alone, and its losses by PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_ds.data.bert_batch import BertBatch


def bert_batch(
    step: int,
    samples: int,
    length: int,
    vocab_size: int,
    mask_rule: Callable[[int, int, int], Tensor],
    *,
    binary_head: bool,
) -> BertBatch:
    """The global batch number `step`: random tokens in two segments, and padding after them in most samples.

    Args:
        step: number of the step.
        samples: samples in the batch.
        length: tokens of a sample, padding included.
        vocab_size: ids in use.
        mask_rule: from (step, samples, length) to what counts in the loss, where there is no padding.
        binary_head: whether samples have an order to be told.
    """
    generator = torch.Generator().manual_seed(3_000 + step)

    def numbers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    places = torch.arange(length)
    ends = numbers(length // 2, length + 1, samples, 1)
    padding_mask = (places < ends).long()
    return BertBatch(
        numbers(0, vocab_size, samples, length) * padding_mask,
        (places >= numbers(2, length // 2, samples, 1)).long() * padding_mask,
        padding_mask,
        numbers(0, vocab_size, samples, length),
        mask_rule(step, samples, length) * padding_mask,
        numbers(0, 2, samples) if binary_head else None,
    )


def plain_bert_loss(outputs: Tensor | tuple[Tensor, ...], batch: BertBatch, vocab_size: int) -> Tensor:
    """The sum of the losses on a whole global batch.

    Args:
        outputs: of the model's last layer.
        batch: what went in.
        vocab_size: ids in use.
    """
    scores = outputs[0] if isinstance(outputs, tuple) else outputs
    token_losses = F.cross_entropy(
        scores.transpose(0, 1)[..., :vocab_size].flatten(0, 1), batch.labels.flatten(), reduction="none"
    )
    mask = batch.loss_mask.flatten()
    loss = (token_losses * mask).sum() / mask.sum()
    return loss if batch.sop_labels is None else loss + F.cross_entropy(outputs[1], batch.sop_labels)
