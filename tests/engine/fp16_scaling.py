"""fp16's dynamic loss scale: what it must do, on GPUs and, where DeepSpeed is talked into it, on CPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.engine.base import StepResult, TrainProgress

STEPS, WARMUP, WINDOW, FIRST_SCALE = 40, 30, 4, 2.0**32
MORE = (
    *("--initial-loss-scale", str(FIRST_SCALE), "--hysteresis", "1", "--loss-scale-window", str(WINDOW)),
    *("--lr-warmup-iters", str(WARMUP)),
)


class ScalingRun(NamedTuple):
    """What happened on one rank.

    Attributes:
        results: of all steps, with losses on CPU.
        unchanged: whether each step left the weights alone.
        progress: how far the run came.
    """

    results: list[StepResult]
    unchanged: list[bool]
    progress: TrainProgress


def allow_fp16_on_cpu() -> None:
    """Lets DeepSpeed build fp16 engines in this rank; it refuses CPUs without fp16 instructions only.

    Ranks live for one test.
    """
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() == "cpu":
        type(get_accelerator()).is_fp16_supported = lambda _self: True


def train_with_overflows(case: Case) -> ScalingRun:
    """Trains from a loss scale that is far too large."""
    allow_fp16_on_cpu()
    tiny = TinyRun(case)
    results, unchanged = [], []
    weights = [parameter for _, parameter in tiny.engine.named_parameters()]
    for step in range(STEPS):
        before = [weight.detach().clone() for weight in weights]
        result = tiny.train_step(step)
        unchanged.append(all(map(torch.equal, before, weights)))
        results.append(
            StepResult(
                {"lm_loss": result.loss.cpu()},
                result.grad_norm,
                result.learning_rate,
                bool(result.skipped),
                result.loss_scale,
            )
        )
    return ScalingRun(results, unchanged, tiny.engine.progress)


def assert_overflows_are_skipped(case: Case, run: ScalingRun) -> None:
    """A step that overflows is skipped, halves the scale, and leaves the learning rate and the weights."""
    results, unchanged, progress = run
    skipped = [result.skipped for result in results]
    scales = [result.loss_scale for result in results]
    assert skipped[0], "the first scale is far too large"
    assert not all(skipped)
    assert unchanged == skipped
    assert scales[0] == FIRST_SCALE
    grown = 0
    for step in range(1, STEPS):
        if skipped[step - 1]:
            assert scales[step] == scales[step - 1] / 2
        else:
            assert scales[step] in (scales[step - 1], 2 * scales[step - 1])
            grown += scales[step] > scales[step - 1]
    assert grown > 0, "the scale grows again after steps without overflow"
    # The n-th update has the n-th rate of the warm-up: a skipped step uses none up.
    updates = 0
    for result in results:
        assert result.learning_rate == pytest.approx(1e-2 * min(1.0, (updates + 1) / WARMUP))
        updates += not result.skipped
    assert progress.step == STEPS
    assert progress.skipped_steps == sum(skipped)
    assert progress.consumed_samples == STEPS * case.global_batch_size
    assert all(bool(result.loss.isfinite()) for result in results)
