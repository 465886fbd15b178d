"""The training loop. It never asks which engine it drives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import GptDatasets
from megatron_ds.engine.base import TrainEngine
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.training.batches import rank_batches
from megatron_ds.training.evaluation import validation_loss
from megatron_ds.training.reporter import Reporter


def train(
    run: RunConfig,
    engine: TrainEngine,
    datasets: GptDatasets,
    mpu: ModelParallelUnit,
    reporter: Reporter,
    save: Callable[[Path], None],
) -> None:
    """Trains up to ``train_iters``, evaluating and saving on the way and at the end.

    Args:
        run: the run.
        engine: holds the model, and how far the run has come.
        datasets: training and validation samples.
        mpu: where this rank sits.
        reporter: gets every result.
        save: writes a checkpoint into a folder.
    """
    assert datasets.train is not None
    training, checkpoint = run.training, run.checkpoint
    batches = rank_batches(run, datasets.train, mpu, consumed_samples=engine.progress.consumed_samples)

    def due(interval: int | None) -> bool:
        step = engine.progress.step
        return step == training.train_iters or (interval is not None and step % interval == 0)

    while engine.progress.step < training.train_iters:
        result = engine.train_step(next(batches))
        reporter.step(engine.progress, result)

        if datasets.valid is not None and due(training.eval_interval):
            reporter.evaluation(engine.progress, validation_loss(run, engine, datasets.valid, mpu))
            reporter.restart_clock()
        if checkpoint.save is not None and due(checkpoint.save_interval):
            save(Path(checkpoint.save))
            reporter.restart_clock()
