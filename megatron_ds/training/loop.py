"""The training loop. It never asks which engine it drives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from megatron_ds.config.blocks import RunConfig
from megatron_ds.engine.base import TrainEngine
from megatron_ds.errors import Problem, TrainingError
from megatron_ds.training.job import UNJUDGED, Judgement, Samples
from megatron_ds.training.reporter import Reporter
from megatron_ds.training.update_guard import UpdateGuard
from megatron_ds.utils.logging import logger


def train(
    run: RunConfig,
    engine: TrainEngine,
    samples: Samples,
    reporter: Reporter,
    save: Callable[[Path, Judgement], None],
    stop: Callable[[int], str | None] = lambda _: None,
) -> None:
    """Trains up to ``train_iters``, evaluating and saving on the way and at the end; then evaluates on the test sets.

    A run that is stopped before saves and returns.

    Args:
        run: the run.
        engine: holds the model, and how far the run has come.
        samples: what it is trained and evaluated on.
        reporter: gets every result.
        save: writes a checkpoint into a folder, with what the evaluation of the same step said.
        stop: tells after each step, but the last one, why the run ends there; None when it goes on.

    Raises:
        TrainingError: gradients are not finite, or tensor-parallel copies differ.
    """
    training, checkpoint = run.training, run.checkpoint
    guard = UpdateGuard(training, checkpoint)
    batches = samples.batches(engine.progress.consumed_samples)

    def due(interval: int | None) -> bool:
        step = engine.progress.step
        return step == training.train_iters or (interval is not None and step % interval == 0)

    def evaluate(split: str) -> Judgement:
        evaluations = []
        for evaluation in samples.evaluate(engine, split):
            reporter.evaluation(engine.progress, split, evaluation)
            evaluations.append(evaluation)
        reporter.restart_clock()
        return samples.judge(evaluations)

    first_step = engine.progress.step
    while engine.progress.step < training.train_iters:
        micro_batches = next(batches)
        result = engine.train_step(micro_batches)
        reporter.step(engine.progress, result)

        # Both checks come before a checkpoint that would keep what they find.
        guard.check(engine, micro_batches, result)
        if training.check_tp_replicas_interval is not None and due(training.check_tp_replicas_interval):
            require_equal_replicas(engine)
        judgement = evaluate("valid") if due(training.eval_interval) else UNJUDGED
        reason = stop(engine.progress.step) if engine.progress.step < training.train_iters else None
        if checkpoint.save is not None and (reason is not None or due(checkpoint.save_interval)):
            save(Path(checkpoint.save), judgement)
            reporter.restart_clock()
        if reason is not None:
            logger.info("stopped after step %d of %d: %s", engine.progress.step, training.train_iters, reason)
            return
    if engine.progress.step > first_step:
        evaluate("test")


def require_equal_replicas(engine: TrainEngine) -> None:
    """Ends the run where tensor-parallel ranks have come to hold different copies of a parameter.

    Raises:
        TrainingError: on the ranks that hold them.
    """
    different = engine.differing_replicas()
    if different:
        raise TrainingError(
            Problem(
                f"step {engine.progress.step}: copies of {len(different)} parameters differ between tensor-parallel "
                f"ranks: {', '.join(different[:5])}{' …' if len(different) > 5 else ''}",
                advice="go on from an older checkpoint; a rank that computes other numbers points to its hardware",
            )
        )
