"""A micro-batch on its way to the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from megatron_ds.errors import DataError, Problem


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one data-parallel rank.

    Attributes:
        tokens: inputs, int64 [B, S].
        labels: the token after each input, int64 [B, S].
        loss_mask: 1 where a label counts in the loss, float32 [B, S].
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on `device`."""
        return Batch(
            self.tokens.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            self.loss_mask.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; the data loader calls this."""
        return Batch(self.tokens.pin_memory(), self.labels.pin_memory(), self.loss_mask.pin_memory())


def make_batch(samples: Sequence[NDArray[np.int64]], vocab_size: int | None = None) -> Batch:
    """Stacks samples of S + 1 tokens into a batch: the last token of each is a label only.

    Args:
        samples: [S + 1] each.
        vocab_size: ids in use. Ids beyond them are an error here: a vocabulary that is cut over ranks would take them
            for tokens of another rank, and train on nothing without a word.

    Raises:
        DataError: a token is no id of the vocabulary.
    """
    stacked = torch.from_numpy(np.stack(samples))
    if vocab_size is not None:
        lowest, highest = (int(bound) for bound in stacked.aminmax())
        if not 0 <= lowest <= highest < vocab_size:
            raise DataError(
                Problem(
                    f"the data has token id {lowest if lowest < 0 else highest}, outside of the vocabulary of "
                    f"{vocab_size} ids",
                    advice="use the tokenizer that the data was preprocessed with",
                )
            )
    tokens, labels = stacked[:, :-1].contiguous(), stacked[:, 1:].contiguous()
    return Batch(tokens, labels, torch.ones(tokens.shape, dtype=torch.float32))


def batch_hash(samples: Iterable[NDArray[np.int64]]) -> str:
    """SHA-1 of a global batch, as 40 hexadecimal digits.

    Args:
        samples: its samples in the order of the data set, [seq_length + 1] each.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    for sample in samples:
        digest.update(sample.astype("<i8").tobytes())
    return digest.hexdigest()
