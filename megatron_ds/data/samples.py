"""What a data set of training samples offers, and how many samples a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SampleCounts:
    """Samples that a run needs from each split. 0 leaves a split out."""

    train: int
    valid: int
    test: int

    def of(self, split: str) -> int:
        """Samples needed from "train", "valid" or "test"."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]


class SampleDataset(Protocol):
    """A fixed sequence of samples: item i is always the same tokens."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        """Sample `index`: `seq_length` + 1 tokens, [seq_length + 1]."""
