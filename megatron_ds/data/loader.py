"""The micro-batches of one data-parallel rank, as a function of the samples consumed so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader, Dataset

from megatron_ds.data.samples import DatasetOf
from megatron_ds.errors import DataError, Problem

SampleT = TypeVar("SampleT")
BatchT = TypeVar("BatchT")


def global_batches(
    dataset: DatasetOf[SampleT],
    collate: Callable[[Sequence[SampleT]], BatchT],
    *,
    consumed_samples: int,
    micro_batch_size: int,
    global_batch_size: int,
    dp_rank: int,
    dp_size: int,
    num_workers: int = 0,
) -> Iterator[list[BatchT]]:
    """Yields one list per optimizer step: this rank's micro-batches.

    Micro-batch m of rank d has the samples ``consumed + (m x dp_size + d) x micro_batch_size`` and the following
    ``micro_batch_size - 1``, so the global batch is the same whatever the layout.

    Args:
        dataset: the samples.
        collate: makes a micro-batch of samples; with `num_workers`, in their processes.
        consumed_samples: samples that all ranks together have used before.
        micro_batch_size: samples per micro-batch.
        global_batch_size: samples per step over all ranks, a multiple of ``micro_batch_size x dp_size``.
        dp_rank: this process's data-parallel rank.
        dp_size: data-parallel size.
        num_workers: background processes; 0 reads in this process.

    Raises:
        DataError: a step is asked for that the data set has no samples for, or `collate` finds fault with one.
    """
    assert global_batch_size % (micro_batch_size * dp_size) == 0, "the config checked the batch sizes"
    num_steps = max(0, len(dataset) - consumed_samples) // global_batch_size
    used = consumed_samples + num_steps * global_batch_size
    stride = micro_batch_size * dp_size
    starts = range(consumed_samples + dp_rank * micro_batch_size, used, stride)
    loader: DataLoader[Any] = DataLoader(
        cast("Dataset[Any]", dataset),
        batch_sampler=_MicroBatchSampler(starts, micro_batch_size),
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        # The loader draws a seed for its workers. From the global generator, that would change the dropout of a run
        # each time a loader is made, so that a resumed run would differ from one that never stopped.
        generator=torch.Generator(),
    )
    micro_batches = iter(loader)
    for _ in range(num_steps):
        with _named_worker_errors():
            batches = [next(micro_batches) for _ in range(global_batch_size // stride)]
        yield batches
    raise DataError(
        Problem(
            f"the data set has {len(dataset)} samples, {used} are used; the next step needs {global_batch_size} more",
            advice="build the data set with as many samples as the run needs (train_iters x global_batch_size)",
        )
    )


@contextmanager
def _named_worker_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        advice = "use fewer --num-workers when memory ran out"
        raise DataError(Problem(f"a process of the data loader died: {error}", advice=advice)) from None


class _MicroBatchSampler(Sized):
    """Sample numbers of micro-batches that start at `starts`, in order."""

    def __init__(self, starts: range, micro_batch_size: int) -> None:
        self._starts = starts
        self._micro_batch_size = micro_batch_size

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(start, start + self._micro_batch_size)) for start in self._starts)
