"""A run's own batches out of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.batch import Batch, TrainingBatch, make_batch
from megatron_ds.data.bert_batch import make_bert_batch
from megatron_ds.data.boundaries import DocumentBoundaries
from megatron_ds.data.loader import global_batches
from megatron_ds.data.samples import DatasetOf
from megatron_ds.mpu import ModelParallelUnit, derive_seed

SampleT = TypeVar("SampleT")
BatchT = TypeVar("BatchT")


def rank_batches(
    run: RunConfig, dataset: DatasetOf[Any], mpu: ModelParallelUnit, *, consumed_samples: int
) -> Iterator[Sequence[TrainingBatch]]:
    """For each global batch from `consumed_samples` on, this rank's micro-batches.

    Args:
        run: the sizes of batches, what the end of a document changes, and whether samples have prefixes.
        dataset: the samples.
        mpu: where this rank sits.
        consumed_samples: samples that all ranks together have used before.
    """
    steps = batches_of_run(run, dataset, mpu, consumed_samples, _collate(run))
    if not run.model.prefix_lm:
        return steps
    return _with_prefixes(run, steps, mpu, consumed_samples)


def numbered_batch(run: RunConfig, dataset: DatasetOf[Any], samples: Sequence[int]) -> TrainingBatch:
    """One batch of the samples with these numbers, as `rank_batches` makes them."""
    batch: TrainingBatch = _collate(run)([dataset[sample] for sample in samples])
    return (
        with_prefixes(batch, samples, run.training.seed) if isinstance(batch, Batch) and run.model.prefix_lm else batch
    )


def _collate(run: RunConfig) -> Callable[[Sequence[Any]], Any]:
    vocab_size = run.model.vocab_size
    if run.model.model_type == "bert":
        return partial(make_bert_batch, vocab_size=vocab_size)
    return partial(make_batch, vocab_size=vocab_size, boundaries=DocumentBoundaries.of(run.data))


def batches_of_run(
    run: RunConfig,
    dataset: DatasetOf[SampleT],
    mpu: ModelParallelUnit,
    consumed_samples: int,
    collate: Callable[[Sequence[SampleT]], BatchT],
) -> Iterator[list[BatchT]]:
    """`global_batches` with the sizes of a run.

    Args:
        run: the sizes of batches, and the processes that read.
        dataset: the samples.
        mpu: where this rank sits.
        consumed_samples: samples that all ranks together have used before.
        collate: makes a micro-batch of samples.
    """
    return global_batches(
        dataset,
        collate,
        consumed_samples=consumed_samples,
        micro_batch_size=run.training.micro_batch_size,
        global_batch_size=run.global_batch_size,
        dp_rank=mpu.dp_rank,
        dp_size=mpu.dp_size,
        num_workers=run.data.num_workers,
    )


def _with_prefixes(
    run: RunConfig, steps: Iterator[list[Batch]], mpu: ModelParallelUnit, consumed_samples: int
) -> Iterator[list[Batch]]:
    size, seed = run.training.micro_batch_size, run.training.seed
    for step, micro_batches in enumerate(steps):
        first = consumed_samples + step * run.global_batch_size
        starts = (first + (number * mpu.dp_size + mpu.dp_rank) * size for number in range(len(micro_batches)))
        yield [
            with_prefixes(batch, range(start, start + size), seed)
            for batch, start in zip(micro_batches, starts, strict=True)
        ]


def with_prefixes(batch: Batch, samples: Sequence[int], seed: int) -> Batch:
    """A batch for a prefix-LM.

    Sample number n has a prefix of P tokens, 0 <= P < S, which (seed, n) determines alone. Its tokens get document id
    0 and the others 1. Labels that are in the prefix don't count: all tokens of the prefix see them.

    Args:
        batch: samples of S tokens.
        samples: their numbers, counted over the run's samples.
        seed: the run's seed.
    """
    length = batch.tokens.shape[1]
    lengths = torch.tensor([derive_seed("prefix", seed, sample) % length for sample in samples]).unsqueeze(1)
    places = torch.arange(length)
    # The label of place i is the token of place i + 1.
    counts = places + 1 >= lengths
    return replace(batch, loss_mask=batch.loss_mask * counts, document_ids=(places >= lengths).to(torch.int32))
