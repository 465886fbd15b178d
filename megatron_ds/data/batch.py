"""A micro-batch on its way to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from megatron_ds.data.boundaries import DocumentBoundaries, document_ids
from megatron_ds.errors import DataError, Problem

# Labels, and 1 where a label counts in the loss: tensors of one shape.
Target = tuple[torch.Tensor, torch.Tensor]


class TrainingBatch(Protocol):
    """What an engine asks of a micro-batch, whatever the family of its model."""

    @property
    def inputs(self) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What the model's first layer gets."""

    @property
    def targets(self) -> Mapping[str, Target]:
        """What each of the model's losses compares with, by the loss's name."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TrainingBatch:
        """The same batch on `device`."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one data-parallel rank.

    Attributes:
        tokens: inputs, int64 [B, S].
        labels: the token after each input, int64 [B, S]. May share memory with `tokens`.
        loss_mask: 1 where a label counts in the loss, float32 [B, S].
        document_ids: number of the document that each input belongs to, counted from 0 in each sample, int32 [B, S];
            None when the model need not know.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    document_ids: torch.Tensor | None = None

    @property
    def inputs(self) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """What the model's first layer gets: tokens, or tokens and document ids."""
        return self.tokens if self.document_ids is None else (self.tokens, self.document_ids)

    @property
    def targets(self) -> Mapping[str, Target]:
        """What the language model's loss compares with."""
        return {"lm_loss": (self.labels, self.loss_mask)}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on `device`."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; the data loader calls this."""
        return self._with_each(torch.Tensor.pin_memory)

    def _with_each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        ids = None if self.document_ids is None else change(self.document_ids)
        return Batch(change(self.tokens), change(self.labels), change(self.loss_mask), ids)


def make_batch(
    samples: Sequence[NDArray[np.int64]] | NDArray[np.int64],
    vocab_size: int | None = None,
    boundaries: DocumentBoundaries | None = None,
) -> Batch:
    """Stacks samples of S + 1 tokens into a batch: the last token of each is a label only.

    Args:
        samples: [S + 1] each; or all of them as one array [B, S + 1], which the batch then shares its memory with.
        vocab_size: ids in use. Ids beyond them are an error here: a vocabulary that is cut over ranks would take them
            for tokens of another rank, and train on nothing without a word.
        boundaries: what the end of a document changes; None when nothing.

    Raises:
        DataError: a token is no id of the vocabulary.
    """
    stacked = np.asarray(samples)
    if vocab_size is not None:
        check_ids(stacked, vocab_size)
    whole = torch.from_numpy(stacked)
    # Views: the model's first layer reads each of them once, so that copies would be the greater part of the work.
    tokens, labels = whole[:, :-1], whole[:, 1:]
    if boundaries is None:
        return Batch(tokens, labels, torch.ones(tokens.shape, dtype=torch.float32))
    ends = stacked[:, :-1] == boundaries.eod_id
    mask = ~ends if boundaries.mask_loss else np.ones_like(ends)
    ids = torch.from_numpy(document_ids(ends)) if boundaries.number_documents else None
    return Batch(tokens, labels, torch.from_numpy(mask.astype(np.float32)), ids)


def check_ids(tokens: NDArray[np.int64], vocab_size: int) -> None:
    """Refuses tokens that are no ids of a vocabulary.

    Args:
        tokens: at least one.
        vocab_size: ids in use.

    Raises:
        DataError: a token is below 0, or `vocab_size` or more.
    """
    # As unsigned numbers, negative ids are the largest: one pass finds both kinds.
    if tokens.view(np.uint64).max() < vocab_size:
        return
    lowest, highest = int(tokens.min()), int(tokens.max())
    raise DataError(
        Problem(
            f"the data has token id {lowest if lowest < 0 else highest}, outside of the vocabulary of {vocab_size} ids",
            advice="use the tokenizer that the data was preprocessed with",
        )
    )
