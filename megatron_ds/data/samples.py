"""What a data set of training samples offers, and how many samples a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from megatron_ds.config.blocks import RunConfig


@dataclass(frozen=True)
class SampleCounts:
    """Samples that a run needs from the training data, and from each validation and test set. 0 leaves a split out."""

    train: int
    valid: int
    test: int

    def of(self, split: str) -> int:
        """Samples needed from "train", "valid" or "test"."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]


def samples_needed(run: RunConfig) -> SampleCounts:
    """Samples that a run draws from each set over its whole length."""
    evaluation = run.training.eval_iters * run.global_batch_size
    return SampleCounts(train=run.training.train_iters * run.global_batch_size, valid=evaluation, test=evaluation)


class SampleDataset(Protocol):
    """A fixed sequence of samples: item i is always the same tokens."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        """Sample `index`: `seq_length` + 1 tokens, [seq_length + 1]."""
