"""The samples of a run in one more random order, for ``--dataloader-type cyclic``."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from megatron_ds.data.samples import DatasetOf, Origin
from megatron_ds.data.shuffle import permutations

# Key of the random stream, after the split numbers that begin those of `gpt_index`.
_CYCLIC = 3

SampleT = TypeVar("SampleT")


class ShuffledDataset(Generic[SampleT]):
    """All samples of a data set, each once, in an order that follows from their number and the seed.

    Args:
        dataset: the samples.
        seed: seed of the order.
    """

    def __init__(self, dataset: DatasetOf[SampleT], seed: int) -> None:
        self._dataset = dataset
        self._order = permutations(np.random.PCG64(np.random.SeedSequence((seed, _CYCLIC))), 1, len(dataset))[0]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int, /) -> SampleT:
        """Sample `index` of the new order."""
        return self._dataset[self._number(index)]

    def origin(self, index: int, /) -> Origin:
        """Where sample `index` of the new order is from."""
        return self._dataset.origin(self._number(index))

    def _number(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return int(self._order[index])
