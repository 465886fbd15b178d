from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from megatron_ds.data.loader import global_batches
from megatron_ds.data.samples import Origin
from megatron_ds.tasks.epochs import EpochOrder, Place, TaskDataset


@dataclass(frozen=True)
class Numbered:
    number: int
    weight: float = 1.0

    def as_filling(self) -> Numbered:
        return replace(self, weight=0.0)


class Numbers:
    path = "train.tsv"

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Numbered:
        return Numbered(index)


def places(order: EpochOrder) -> list[Place]:
    return [order[index] for index in range(len(order))]


@pytest.mark.parametrize(("examples", "batch", "steps"), [(7, 8, 1), (8, 8, 1), (9, 8, 2), (1, 4, 1), (3, 1, 3)])
def test_epoch_order_has_each_example_once_an_epoch(examples: int, batch: int, steps: int) -> None:
    order = EpochOrder(examples, global_batch_size=batch, epochs=3, seed=5)
    assert order.steps_per_epoch == steps
    assert len(order) == 3 * steps * batch
    for epoch in range(3):
        of_epoch = places(order)[epoch * steps * batch : (epoch + 1) * steps * batch]
        assert sorted(place.example for place in of_epoch if place.counts) == list(range(examples))
        # What fills up stands behind, and only there.
        assert [place.counts for place in of_epoch] == [True] * examples + [False] * (steps * batch - examples)


def test_epoch_order_depends_on_seed_and_epoch_alone() -> None:
    def epoch(order: EpochOrder, number: int) -> list[int]:
        return [order[index].example for index in range(number * 40, number * 40 + 40)]

    order = EpochOrder(40, global_batch_size=8, epochs=3, seed=5)
    first, second = epoch(order, 0), epoch(order, 1)
    assert first != second
    assert list(range(40)) not in (first, second)
    # Another batch size, more epochs, and the second epoch asked for first.
    other = EpochOrder(40, global_batch_size=20, epochs=9, seed=5)
    assert (epoch(other, 1), epoch(other, 0)) == (second, first)
    assert epoch(EpochOrder(40, global_batch_size=8, epochs=3, seed=6), 0) != first


def test_epoch_order_does_not_change_between_releases() -> None:
    order = EpochOrder(6, global_batch_size=6, epochs=2, seed=1234)
    assert [place.example for place in places(order)] == [4, 2, 0, 3, 1, 5, 1, 5, 3, 4, 2, 0]


def test_epoch_order_without_seed_is_in_order() -> None:
    order = EpochOrder(3, global_batch_size=8, seed=None)
    assert places(order) == [Place(example, number < 3) for number, example in enumerate([0, 1, 2, 0, 1, 2, 0, 1])]


@pytest.mark.parametrize("index", [-1, 8])
def test_epoch_order_outside_of_the_run_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"sample {index} of 8"):
        EpochOrder(3, global_batch_size=8, seed=None)[index]


def test_task_dataset_of_seven_samples_counts_seven_once_over_two_ranks() -> None:
    dataset = TaskDataset(Numbers(7), EpochOrder(7, global_batch_size=8, seed=None))
    counted = []
    for rank in range(2):
        step = next(
            global_batches(
                dataset,
                list,
                consumed_samples=0,
                micro_batch_size=4,
                global_batch_size=8,
                dp_rank=rank,
                dp_size=2,
            )
        )
        assert [len(batch) for batch in step] == [4]
        counted += [sample.number for batch in step for sample in batch if sample.weight == 1]
    assert sorted(counted) == list(range(7))


def test_task_dataset_origin_names_the_example() -> None:
    dataset = TaskDataset(Numbers(7), EpochOrder(7, global_batch_size=4, epochs=2, seed=3))
    assert len(dataset) == 16
    for index in range(16):
        assert dataset.origin(index) == Origin("train.tsv", dataset[index].number, ())
