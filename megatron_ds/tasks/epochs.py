"""Which example each sample of a run is: epochs of whole batches, the last one filled up with samples of weight 0."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.samples import Origin
from megatron_ds.data.shuffle import permutations

# Key of the random stream of an epoch's order, after those of pretraining's data.
_EPOCH = 7


class Place(NamedTuple):
    """One sample of a run.

    Attributes:
        example: number of the example.
        counts: False where it only fills up a batch, with weight 0.
    """

    example: int
    counts: bool


class EpochOrder:
    """The examples of a run, one sample after the other.

    Each epoch has every example once, in whole global batches. What fills up the last of them are examples of that
    epoch again, as a batch needs inputs of the usual kind: a sequence of nothing but padding has no finite attention.

    Args:
        num_examples: examples of an epoch, at least 1.
        global_batch_size: samples of a step over all ranks.
        epochs: how often the examples are gone through.
        seed: seed of the orders, each of which (seed, epoch) determines alone; None: in order, for evaluation.
    """

    def __init__(self, num_examples: int, *, global_batch_size: int, epochs: int = 1, seed: int | None) -> None:
        assert num_examples > 0, "readers refuse a file without examples"
        self.num_examples = num_examples
        self.epochs = epochs
        self.steps_per_epoch = -(-num_examples // global_batch_size)
        self._samples_per_epoch = self.steps_per_epoch * global_batch_size
        self._seed = seed
        self._shuffled: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Samples of the run, with those that fill up."""
        return self.epochs * self._samples_per_epoch

    def __getitem__(self, index: int, /) -> Place:
        """Sample `index` of the run."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        epoch, number = divmod(index, self._samples_per_epoch)
        example = number % self.num_examples
        if self._seed is not None:
            example = int(self._order(epoch, self._seed)[example])
        return Place(example, number < self.num_examples)

    def _order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        # One epoch's at a time: samples are asked for in order.
        if self._shuffled is None or self._shuffled[0] != epoch:
            bits = np.random.PCG64(np.random.SeedSequence((seed, epoch, _EPOCH)))
            self._shuffled = epoch, permutations(bits, 1, self.num_examples)[0]
        return self._shuffled[1]


class Weighted(Protocol):
    """A sample that can be made to count for nothing."""

    def as_filling(self) -> Any:
        """The same sample with weight 0."""


SampleT = TypeVar("SampleT", bound=Weighted)
SampleT_co = TypeVar("SampleT_co", covariant=True, bound=Weighted)


class Examples(Protocol[SampleT_co]):
    """Encoded examples of a task."""

    @property
    def path(self) -> str:
        """The file or folder that they are from; several are joined by commas."""

    def __len__(self) -> int:
        """Number of examples."""

    def __getitem__(self, index: int, /) -> SampleT_co:
        """Example `index` as a sample."""


class TaskDataset(Generic[SampleT]):
    """The samples of a run, or of an evaluation: a `DatasetOf` for the data loader.

    Args:
        examples: the encoded examples.
        order: which of them comes when; of as many examples.
    """

    def __init__(self, examples: Examples[SampleT], order: EpochOrder) -> None:
        assert len(examples) == order.num_examples, "the order of these examples"
        self.examples = examples
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int, /) -> SampleT:
        """Sample `index` of the run."""
        place = self.order[index]
        sample = self.examples[place.example]
        if place.counts:
            return sample
        filling: SampleT = sample.as_filling()
        return filling

    def origin(self, index: int, /) -> Origin:
        """Where sample `index` is from: the example's number among those that were read; it has no documents."""
        return Origin(self.examples.path, self.order[index].example, ())
