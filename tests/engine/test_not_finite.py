"""A loss or gradient that is not finite on one rank is seen by all, changes no weight and ends the run (M3, M5)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.engine.base import StepResult, TrainProgress
from megatron_ds.errors import TrainingError
from megatron_ds.models import GptLoss
from megatron_ds.training.update_guard import UpdateGuard
from tests.dist.pool import run_ranks
from tests.engine.fp16_scaling import allow_fp16_on_cpu

BAD_STEP, BAD_RANK = 2, 1


class _BrokenLoss:
    """GPT's loss, multiplied by a factor on demand."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.whole: GptLoss | None = None

    def __call__(self, logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        assert self.whole is not None
        return self.whole(logits, targets) * self.factor


def _tiny_run(case: Case) -> tuple[TinyRun, _BrokenLoss]:
    loss = _BrokenLoss()
    tiny = TinyRun(case, loss=loss)
    loss.whole = GptLoss(tiny.run.model, tiny.mpu)
    return tiny, loss


class _BadStep(NamedTuple):
    """What a rank saw in the step with NaN."""

    message: str
    exit_code: int
    skipped: bool
    unchanged: bool
    progress: TrainProgress


def _weights(tiny: TinyRun) -> dict[str, Tensor]:
    """The whole model on rank 0, nothing on others."""
    from megatron_ds.engine.weights import full_weights

    return {name: weight.clone() for name, weight in (full_weights(tiny.engine, tiny.mpu) or {}).items()}


def _train_into_nan(case: Case) -> _BadStep:
    tiny, loss = _tiny_run(case)
    guard = UpdateGuard(tiny.run.training, tiny.run.checkpoint)
    for step in range(BAD_STEP):
        guard.check(tiny.engine, tiny.batches(step), tiny.train_step(step))
    before = _weights(tiny)
    loss.factor = float("nan") if dist.get_rank() == BAD_RANK else 1.0
    result = tiny.train_step(BAD_STEP)
    after = _weights(tiny)
    with pytest.raises(TrainingError) as caught:
        guard.check(tiny.engine, tiny.batches(BAD_STEP), result)
    unchanged = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    return _BadStep(str(caught.value), caught.value.exit_code, result.skipped, unchanged, tiny.engine.progress)


@pytest.mark.parametrize(
    "case",
    [
        Case(dp=2, zero=0),
        Case(dp=2, zero=1),
        Case(dp=2, zero=1, precision="bf16"),
        Case(dp=2, zero=2, precision="bf16"),
        Case(dp=2, zero=3),
        Case(tp=2, zero=0),
        Case(tp=2, zero=1),
        Case(pp=2, zero=0),
        Case(pp=2, zero=1),
        Case(pp=2, zero=1, precision="bf16"),
    ],
    ids=lambda case: f"tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}",
)
def test_nan_of_one_rank_ends_all_and_changes_no_weight(case: Case) -> None:
    """M5."""
    for bad in run_ranks(2, _train_into_nan, case=case, timeout=60):
        assert f"step {BAD_STEP + 1}: the gradient is not finite" in bad.message
        assert "there is no checkpoint" in bad.message
        assert bad.exit_code == 5
        assert bad.skipped
        assert bad.unchanged
        assert bad.progress == TrainProgress(BAD_STEP + 1, 1, (BAD_STEP + 1) * case.global_batch_size)


def _always_overflow(case: Case) -> tuple[list[StepResult], str]:
    """Steps until the guard ends the run, and its message."""
    allow_fp16_on_cpu()
    tiny, loss = _tiny_run(case)
    guard = UpdateGuard(tiny.run.training, tiny.run.checkpoint)
    guard.check(tiny.engine, tiny.batches(0), tiny.train_step(0))
    loss.factor = 1e30  # finite in the fp32 of the loss, infinite in fp16 gradients
    results: list[StepResult] = []
    while len(results) < 20:
        result = tiny.train_step(1)
        results.append(result)
        try:
            guard.check(tiny.engine, tiny.batches(1), result)
        except TrainingError as error:
            return results, str(error)
    raise AssertionError("endless skipping")


@pytest.mark.parametrize(
    ("layout", "zero"), [((1, 1, 2), 1), ((1, 1, 2), 2), ((1, 1, 2), 3), ((2, 1, 1), 1), ((1, 2, 1), 1)]
)
@pytest.mark.parametrize("scale", [("--initial-loss-scale", "4", "--hysteresis", "1"), ("--loss-scale", "4")])
def test_fp16_that_always_overflows_ends_after_the_given_steps_on_all_ranks(
    layout: tuple[int, int, int], zero: int, scale: tuple[str, ...]
) -> None:
    """M3: also at the lowest dynamic scale, where DeepSpeed raises a bare exception, and with a fixed one."""
    case = Case(*layout, zero=zero, precision="fp16", more=(*scale, "--max-skipped-steps", "6"))
    for results, message in run_ranks(2, _always_overflow, case=case, timeout=60):
        assert len(results) == 6
        assert all(result.skipped for result in results)
        last_scale = 4 if scale[0] == "--loss-scale" else 1
        assert f"step 7: fp16 skipped 6 steps in a row, the last one with a loss scale of {last_scale}" in message
        assert "the loss is finite" in message
        assert "there is no checkpoint" in message


def _whole(parameter: nn.Parameter) -> AbstractContextManager[object]:
    """Makes a parameter of ZeRO-3 whole, to be written to on all ranks alike."""
    import deepspeed

    partitioned = [parameter] if hasattr(parameter, "ds_id") else []
    context: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(partitioned, modifier_rank=0)
    return context


def _break_a_layer(case: Case, name: str) -> str | None:
    tiny = TinyRun(case)
    assert tiny.engine.first_not_finite(tiny.batches(0)) is None
    for found, parameter in tiny.engine.named_parameters():
        if found == name:
            with torch.no_grad(), _whole(parameter):
                parameter.fill_(float("inf"))
    return tiny.engine.first_not_finite(tiny.batches(0))


@pytest.mark.parametrize(
    ("case", "rank"),
    [(Case(tp=2, zero=1), 0), (Case(pp=2, zero=1), 1), (Case(dp=2, zero=3, recompute=True), 0)],
    ids=["tp2", "pp2", "dp2"],
)
def test_first_layer_that_is_not_finite_is_named_with_its_rank(case: Case, rank: int) -> None:
    """M3. The layer is on the second of two stages; all later ones are not finite either."""
    name = "layers.2.attention.dense"
    expected = f"{name} on rank {rank}"
    assert run_ranks(2, _break_a_layer, case=case, name=f"{name}.weight", timeout=60) == [expected] * 2
