"""A run's own batches out of a data set."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.batch import Batch
from megatron_ds.data.boundaries import DocumentBoundaries
from megatron_ds.data.loader import global_batches
from megatron_ds.data.samples import SampleDataset
from megatron_ds.mpu import ModelParallelUnit


def rank_batches(
    run: RunConfig, dataset: SampleDataset, mpu: ModelParallelUnit, *, consumed_samples: int
) -> Iterator[list[Batch]]:
    """For each global batch from `consumed_samples` on, this rank's micro-batches.

    Args:
        run: the sizes of batches, and what the end of a document changes.
        dataset: the samples.
        mpu: where this rank sits.
        consumed_samples: samples that all ranks together have used before.
    """
    return global_batches(
        dataset,
        consumed_samples=consumed_samples,
        micro_batch_size=run.training.micro_batch_size,
        global_batch_size=run.global_batch_size,
        dp_rank=mpu.dp_rank,
        dp_size=mpu.dp_size,
        num_workers=run.data.num_workers,
        vocab_size=run.model.vocab_size,
        boundaries=DocumentBoundaries.of(run.data),
    )
