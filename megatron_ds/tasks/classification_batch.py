"""A micro-batch of classification on its way to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megatron_ds.data.batch import Target, check_ids
from megatron_ds.tasks.pairs import ClassificationSample

CLASSIFICATION_LOSS, REGRESSION_LOSS = "classification_loss", "regression_loss"


@dataclass(frozen=True)
class TaskBatch:
    """One micro-batch of one data-parallel rank. A choice of C texts has C rows one after the other, otherwise C = 1.

    Attributes:
        tokens: int64 [B x C, S].
        token_types: 1 for the second text, else 0, int64 [B x C, S].
        padding_mask: 1 for tokens, 0 for padding, int64 [B x C, S].
        labels: classes or choices, int64 [B]; or scores, float32 [B].
        weights: 1, or 0 where an example doesn't count, float32 [B].
        uids: what the examples are called, B of them.
    """

    tokens: torch.Tensor
    token_types: torch.Tensor
    padding_mask: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    uids: tuple[str, ...]

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the model's first layer gets."""
        return self.tokens, self.token_types, self.padding_mask

    @property
    def targets(self) -> Mapping[str, Target]:
        """What the loss compares with: of regression where labels are scores, else of classification."""
        name = REGRESSION_LOSS if self.labels.is_floating_point() else CLASSIFICATION_LOSS
        return {name: (self.labels, self.weights)}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TaskBatch:
        """The same batch on `device`."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> TaskBatch:
        """The same batch in page-locked memory; the data loader calls this."""
        return self._with_each(torch.Tensor.pin_memory)

    def _with_each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TaskBatch:
        return TaskBatch(
            change(self.tokens),
            change(self.token_types),
            change(self.padding_mask),
            change(self.labels),
            change(self.weights),
            self.uids,
        )


def make_task_batch(
    samples: Sequence[ClassificationSample], *, is_regression: bool = False, vocab_size: int | None = None
) -> TaskBatch:
    """Stacks samples into a batch.

    Args:
        samples: at least one, all of one shape.
        is_regression: whether labels are scores.
        vocab_size: ids in use. Ids beyond them are an error here; see `make_batch`.

    Raises:
        DataError: a token is no id of the vocabulary.
    """
    seq_length = samples[0].tokens.shape[-1]
    # [B, C, S] and [B, S] -> [B x C, S]
    tokens, token_types, padding_mask = (
        np.stack([getattr(sample, name) for sample in samples]).reshape(-1, seq_length)
        for name in ("tokens", "token_types", "padding_mask")
    )
    if vocab_size is not None:
        check_ids(tokens, vocab_size)
    labels = [sample.label for sample in samples]
    return TaskBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(token_types),
        torch.from_numpy(padding_mask),
        torch.tensor(labels, dtype=torch.float32 if is_regression else torch.int64),
        torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        tuple(sample.uid for sample in samples),
    )
