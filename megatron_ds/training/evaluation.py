"""The losses on samples that are not trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any

from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.samples import DatasetOf
from megatron_ds.engine.base import EvalResult, TrainEngine
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.training.batches import rank_batches


def mean_losses(
    run: RunConfig, engine: TrainEngine, dataset: DatasetOf[Any], mpu: ModelParallelUnit
) -> dict[str, float]:
    """The model's losses by name, each a mean over the labels of the first ``eval_iters`` global batches of `dataset`.

    They are the same samples at each evaluation, so that a run's validation losses can be compared with each other
    and nothing about them needs saving.

    Args:
        run: the run.
        engine: holds the model.
        dataset: a validation or test set: ``eval_iters`` global batches of samples.
        mpu: where this rank sits.
    """
    batches = rank_batches(run, dataset, mpu, consumed_samples=0)
    return means_over(engine.evaluate(micro_batches) for micro_batches in islice(batches, run.training.eval_iters))


def means_over(results: Iterable[EvalResult]) -> dict[str, float]:
    """The losses of several global batches together by name, each a mean over all labels.

    Args:
        results: of the batches.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, float] = defaultdict(float)
    for result in results:
        for name, loss in result.losses.items():
            count = float(result.counts[name])
            totals[name] += float(loss) * count
            counts[name] += count
    return {name: total / max(counts[name], 1.0) for name, total in totals.items()}
