"""The loss on samples that are not trained on."""

from __future__ import annotations

from itertools import islice

from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.samples import SampleDataset
from megatron_ds.engine.base import TrainEngine
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.training.batches import rank_batches


def mean_loss(run: RunConfig, engine: TrainEngine, dataset: SampleDataset, mpu: ModelParallelUnit) -> float:
    """Mean loss per token over the first ``eval_iters`` global batches of `dataset`.

    They are the same samples at each evaluation, so that a run's validation losses can be compared with each other
    and nothing about them needs saving.

    Args:
        run: the run.
        engine: holds the model.
        dataset: a validation or test set: ``eval_iters`` global batches of samples.
        mpu: where this rank sits.
    """
    batches = rank_batches(run, dataset, mpu, consumed_samples=0)
    total_loss = total_tokens = 0.0
    for micro_batches in islice(batches, run.training.eval_iters):
        result = engine.evaluate(micro_batches)
        tokens = float(result.tokens)
        total_loss += float(result.loss) * tokens
        total_tokens += tokens
    return total_loss / max(total_tokens, 1.0)
