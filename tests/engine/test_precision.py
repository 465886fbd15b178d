"""Gradients are added up in fp32 under bf16, whichever optimizer DeepSpeed picks; fp16's scale (reports M1, M3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.config.blocks import RunConfig
from megatron_ds.models import LayerDef
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks
from tests.engine.fp16_scaling import MORE, assert_overflows_are_skipped, train_with_overflows

MICRO_BATCHES = 256
SMALL = 2.0**-9


class _Add(nn.Module):
    """Adds its one weight, so that the weight's gradient is the sum of the loss's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        start = inputs if inputs.is_floating_point() else torch.zeros_like(inputs, dtype=self.weight.dtype)
        return start + self.weight


def _two_weights(_run: RunConfig, _mpu: ModelParallelUnit) -> list[LayerDef]:
    return [LayerDef(f"add_{number}", _Add, _Add) for number in range(2)]


def _one_large_then_small(_step: int, samples: int, length: int) -> Tensor:
    """1 in the first micro-batch of each rank, and 2^-9 in all others."""
    mask = torch.zeros(samples, length)
    mask[:, 0] = SMALL
    mask[: samples // MICRO_BATCHES, 0] = 1.0
    return mask


def _weighted_sum(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    return (outputs * targets[1]).sum()


def _norm_and_facts(case: Case) -> tuple[float, dict[str, Any]]:
    tiny = TinyRun(case, layers=_two_weights, loss=_weighted_sum, mask_rule=_one_large_then_small)
    return tiny.train_step(0).grad_norm, tiny.facts()


def _case(pp: int, dp: int, zero: int, deepspeed_json: str = "") -> Case:
    more = ("--pp-partition-method", "uniform")
    return Case(1, pp, dp, zero, "bf16", global_batch_size=MICRO_BATCHES * dp, more=more, deepspeed_json=deepspeed_json)


# Each of the two weights has the gradient (1 + 255 * 2^-9) / n, and n is just that sum of the mask.
EXACT_NORM = 2**0.5


@pytest.mark.parametrize(("pp", "dp", "zero"), [(1, 1, 1), (1, 2, 1), (1, 2, 2), (1, 2, 3), (2, 1, 1)])
def test_bf16_gradients_add_up_in_fp32(pp: int, dp: int, zero: int) -> None:
    case = _case(pp, dp, zero)
    for norm, facts in run_ranks(case.world_size, _norm_and_facts, case=case):
        assert (facts["pp"], facts["dp"], facts["zero"]) == (pp, dp, zero)
        assert facts["num_micro_batches"] == MICRO_BATCHES
        assert facts["parameter_dtype"] == "bfloat16"
        assert facts["gradient accumulation"] == "float32"
        # Each gradient is rounded to bf16 (8 bits) once, on its way out of the backward pass.
        assert norm == pytest.approx(EXACT_NORM, rel=2**-8)


@pytest.mark.parametrize(("zero", "optimizer"), [(1, "DeepSpeedZeroOptimizer"), (2, "DeepSpeedZeroOptimizer")])
def test_asked_accumulation_dtype_is_used(zero: int, optimizer: str) -> None:
    deepspeed_json = json.dumps({"data_types": {"grad_accum_dtype": "bf16"}})
    norm, facts = run_ranks(1, _norm_and_facts, case=_case(1, 1, zero, deepspeed_json))[0]
    assert facts["gradient accumulation"] == "bfloat16"
    assert facts["optimizer"].startswith(optimizer)
    # In bf16 each of the small gradients is less than half a unit in the last place of the sum, and is lost.
    assert norm == pytest.approx(EXACT_NORM / (1 + (MICRO_BATCHES - 1) * SMALL), rel=1e-2)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_fp16_overflow_is_skipped_on_all_ranks(tp: int, pp: int) -> None:
    case = Case(tp, pp, precision="fp16", micro_batch_size=4, more=MORE)
    runs = run_ranks(case.world_size, train_with_overflows, case=case, timeout=60)
    for run in runs:
        assert_overflows_are_skipped(case, run)
        assert [result.skipped for result in run.results] == [result.skipped for result in runs[0].results]
