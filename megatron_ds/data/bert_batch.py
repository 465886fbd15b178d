"""A micro-batch of BERT's samples on its way to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megatron_ds.data.batch import Target, check_ids
from megatron_ds.data.bert_samples import BertSample


@dataclass(frozen=True)
class BertBatch:
    """One micro-batch of one data-parallel rank.

    Attributes:
        tokens: as the model sees them, int64 [B, S].
        token_types: 1 for the second segment, else 0, int64 [B, S].
        padding_mask: 1 for tokens, 0 for padding, int64 [B, S].
        labels: the tokens before any was masked, int64 [B, S].
        loss_mask: 1 where a token is to be predicted, else 0, float32 [B, S].
        sop_labels: 1 where the segments are swapped, else 0, int64 [B]; None where samples have one segment.
    """

    tokens: torch.Tensor
    token_types: torch.Tensor
    padding_mask: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    sop_labels: torch.Tensor | None

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the model's first layer gets."""
        return self.tokens, self.token_types, self.padding_mask

    @property
    def targets(self) -> Mapping[str, Target]:
        """What the losses of the masked tokens and of the sentence order compare with; each sample has an order."""
        tokens = {"lm_loss": (self.labels, self.loss_mask)}
        if self.sop_labels is None:
            return tokens
        everyone = torch.ones(self.sop_labels.shape, dtype=torch.float32, device=self.sop_labels.device)
        return {**tokens, "sop_loss": (self.sop_labels, everyone)}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> BertBatch:
        """The same batch on `device`."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> BertBatch:
        """The same batch in page-locked memory; the data loader calls this."""
        return self._with_each(torch.Tensor.pin_memory)

    def _with_each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> BertBatch:
        return BertBatch(
            change(self.tokens),
            change(self.token_types),
            change(self.padding_mask),
            change(self.labels),
            change(self.loss_mask),
            None if self.sop_labels is None else change(self.sop_labels),
        )


def make_bert_batch(samples: Sequence[BertSample], vocab_size: int | None = None) -> BertBatch:
    """Stacks samples into a batch.

    Args:
        samples: at least one; all of them have two segments, or all have one.
        vocab_size: ids in use. Ids beyond them are an error here; see `make_batch`.

    Raises:
        DataError: a token is no id of the vocabulary.
    """
    tokens, token_types, padding_mask, labels = (
        np.stack([getattr(sample, name) for sample in samples])
        for name in ("tokens", "token_types", "padding_mask", "labels")
    )
    if vocab_size is not None:
        check_ids(labels, vocab_size)
    loss_mask = np.stack([sample.loss_mask for sample in samples]).astype(np.float32)
    sop_labels = [sample.sop_label for sample in samples]
    return BertBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(token_types),
        torch.from_numpy(padding_mask),
        torch.from_numpy(labels),
        torch.from_numpy(loss_mask),
        None if None in sop_labels else torch.tensor(sop_labels, dtype=torch.int64),
    )
