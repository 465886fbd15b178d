"""What a data set of training samples offers, and how many samples a run needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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


def samples_needed(run: RunConfig, *, step: int = 0, consumed_samples: int = 0) -> SampleCounts:
    """Samples that a run draws from each set over its whole length.

    Args:
        run: the run.
        step: optimizer steps done before it: steps before a checkpoint may have had another batch size.
        consumed_samples: training samples used in them.
    """
    evaluation = run.training.eval_iters * run.global_batch_size
    steps_to_go = max(0, run.training.train_iters - step)
    train = consumed_samples + steps_to_go * run.global_batch_size
    return SampleCounts(train=train, valid=evaluation, test=evaluation)


@dataclass(frozen=True)
class Piece:
    """A run of tokens out of one document.

    Attributes:
        document: number of the document in its file.
        first_token: number of the run's first token in the document.
        tokens: how many there are.
    """

    document: int
    first_token: int
    tokens: int


@dataclass(frozen=True)
class Origin:
    """Where the tokens of a sample are from.

    Attributes:
        prefix: path of the files without suffix.
        sample: number of the sample among those of its data set, in the order of training.
        pieces: the documents' parts in it, one after the other.
    """

    prefix: str
    sample: int
    pieces: tuple[Piece, ...]


class SampleDataset(Protocol):
    """A fixed sequence of samples: item i is always the same tokens."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        """Sample `index`: `seq_length` + 1 tokens, [seq_length + 1]."""

    def origin(self, index: int, /) -> Origin:
        """Where sample `index` is from."""


def batch_hash(samples: Iterable[NDArray[np.int64]]) -> str:
    """SHA-1 of a global batch, as 40 hexadecimal digits.

    Args:
        samples: its samples in the order of the data set, [seq_length + 1] each.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    for sample in samples:
        digest.update(sample.astype("<i8").tobytes())
    return digest.hexdigest()
