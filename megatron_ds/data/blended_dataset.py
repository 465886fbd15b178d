"""Several data sets as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from megatron_ds.data.blend_order import BlendOrder
from megatron_ds.data.samples import DatasetOf, Origin

SampleT = TypeVar("SampleT")


class BlendedDataset(Generic[SampleT]):
    """Several data sets as one, drawn from in the ratio of their weights.

    Args:
        datasets: per set as many samples as `order` draws from it; None where it draws none.
        order: the order of draws.
        num_samples: number of samples.
    """

    def __init__(self, datasets: Sequence[DatasetOf[SampleT] | None], order: BlendOrder, num_samples: int) -> None:
        self._datasets = datasets
        self._order = order
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int, /) -> SampleT:
        """Sample `index` of the blend."""
        dataset, sample = self._locate(index)
        return dataset[sample]

    def origin(self, index: int, /) -> Origin:
        """Where sample `index` is from."""
        dataset, sample = self._locate(index)
        return dataset.origin(sample)

    def _locate(self, index: int) -> tuple[DatasetOf[SampleT], int]:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        number, sample = self._order.locate(index)
        dataset = self._datasets[number]
        assert dataset is not None, "the order draws from sets that have samples"
        return dataset, sample
