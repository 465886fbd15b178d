"""The loop ends a run that makes no updates, before it saves (field reports M3, M5)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tiny_run import Case
from megatron_ds.engine.base import StepResult, TrainProgress
from megatron_ds.errors import TrainingError
from megatron_ds.training.update_guard import UpdateGuard
from tests.training.test_replica_check import FakeEngine, train_fake

GOOD = StepResult({"lm_loss": torch.ones(())}, 1.0, 1e-3, skipped=False, loss_scale=1.0)
OVERFLOW = StepResult({"lm_loss": torch.ones(())}, math.inf, 1e-3, skipped=True, loss_scale=1.0)


def _at(step: int) -> Any:
    """An engine after `step` steps."""
    engine = FakeEngine()
    engine.progress = TrainProgress(step)
    return engine


def _guard(*flags: str, precision: str = "fp16") -> UpdateGuard:
    run = Case(precision=precision, more=flags).resolve().run  # type: ignore[arg-type]
    return UpdateGuard(run.training, run.checkpoint)


def test_fp16_steps_that_are_skipped_now_and_then_are_fine() -> None:
    guard = _guard("--max-skipped-steps", "3")
    for step, result in enumerate([OVERFLOW, OVERFLOW, GOOD] * 5, 1):
        guard.check(_at(step), [], result)


def test_fp16_steps_skipped_in_a_row_end_the_run_at_their_limit() -> None:
    guard = _guard("--max-skipped-steps", "3")
    guard.check(_at(1), [], OVERFLOW)
    guard.check(_at(2), [], OVERFLOW)
    with pytest.raises(TrainingError, match="step 3: fp16 skipped 3 steps in a row") as caught:
        guard.check(_at(3), [], OVERFLOW)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_first_gradient_that_is_not_finite_ends_runs_without_a_loss_scale(precision: str) -> None:
    with pytest.raises(TrainingError, match="step 1: the gradient is not finite"):
        _guard(precision=precision).check(_at(1), [], OVERFLOW)


def test_loop_ends_before_it_saves_what_is_not_finite(tmp_path: Path) -> None:
    engine, saved = FakeEngine(first_nan_step=4), []
    with pytest.raises(
        TrainingError, match=r"step 4: .*layers\.0\.mlp\.dense_h_to_4h on rank 0.*\n.*there is no checkpoint"
    ):
        train_fake(
            engine, "--save", str(tmp_path), "--save-interval", "2", save=lambda *_: saved.append(engine.progress)
        )
    assert [progress.step for progress in saved] == [2]
