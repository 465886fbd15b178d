"""The two copies of a tied embedding: equal to the bit, and counted once (field reports P5, P7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.tiny_run import Case, TinyRun, run_case, run_plain_pytorch
from megatron_ds.config.blocks import RunConfig
from megatron_ds.models import LayerDef, gpt_layers
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks
from tests.engine.fp16_scaling import allow_fp16_on_cpu

STEPS = 20


def _accumulate_in(dtype: str) -> str:
    return json.dumps({"data_types": {"grad_accum_dtype": dtype}})


def _train_and_compare_copies(case: Case) -> tuple[list[float], list[int], dict[str, Any], int]:
    """Losses, the steps after which this rank's tied weight is not its peer's, facts, and the number of copies."""
    allow_fp16_on_cpu()
    tiny = TinyRun(case)
    losses, unequal = [], []
    tied = tiny.engine.deepspeed_engine.module.get_tied_weights_and_groups()
    copies = 0
    for step in range(STEPS):
        result = tiny.train_step(step)
        assert not result.skipped
        losses.append(float(result.loss))
        for weight, group in tied:
            found = [torch.empty_like(weight) for _ in range(dist.get_world_size(group))]
            dist.all_gather(found, weight.detach().contiguous(), group=group)
            copies = len(found)
            if not all(torch.equal(copy, found[0]) for copy in found):
                unequal.append(step)
    return losses, unequal, tiny.facts(), copies


@pytest.mark.parametrize(
    ("case", "accumulation"),
    [
        (Case(2, 2, 2, 1), "float32"),
        (Case(2, 2, 2, 1, "bf16"), "float32"),
        (Case(1, 2, 2, 1, "bf16", deepspeed_json=_accumulate_in("bf16")), "bfloat16"),
        # DeepSpeed's own reduction of tied gradients misses these two: they accumulate outside `.grad`.
        (Case(1, 2, 2, 1, "fp16"), "float32"),
        (Case(2, 2, 1, 1, "fp16"), "float32"),
        (Case(1, 2, 1, 1, "fp16", deepspeed_json=_accumulate_in("fp16")), "float16"),
    ],
    ids=lambda value: f"tp{value.tp}dp{value.dp}-{value.precision}" if isinstance(value, Case) else value,
)
def test_tied_copies_stay_equal_to_the_bit(case: Case, accumulation: str) -> None:
    if case.precision == "fp16":
        case = _with_scale(case)
    results = run_ranks(case.world_size, _train_and_compare_copies, case=case)
    for losses, unequal, facts, copies in results:
        assert copies == 2, "each rank holds one of two copies: both stages are ends of the pipeline"
        assert unequal == []
        assert facts["gradient accumulation"] == accumulation
        assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[case.precision]
        assert losses == results[0][0]
    (expected,) = run_ranks(1, run_plain_pytorch, case=Case(), steps=STEPS, eval_before=())
    # 16-bit: 20 steps of rounding. A copy that misses the other's gradient is off by 2e-2 and more from step 2 on.
    assert results[0][0] == pytest.approx(expected.losses, rel=1e-5 if case.precision == "fp32" else 5e-3)


def _with_scale(case: Case) -> Case:
    """fp16 with a scale that never overflows here, so that all steps count."""
    return Case(
        case.tp, case.pp, case.dp, case.zero, "fp16", deepspeed_json=case.deepspeed_json, more=("--loss-scale", "128")
    )


class _Scale(nn.Module):
    """A layer without parameters."""

    def forward(self, hidden: Tensor) -> Tensor:
        return 2.0 * hidden


def _embedding_alone(run: RunConfig, mpu: ModelParallelUnit) -> list[LayerDef]:
    """Embedding, two layers without parameters, and the tied head: one trainable weight in all."""
    first, *_, head = gpt_layers(run.model, mpu)
    return [first, LayerDef("scale_1", _Scale, _Scale), LayerDef("scale_2", _Scale, _Scale), head]


def _norms_of_embedding_alone(case: Case) -> list[float]:
    tiny = TinyRun(case, layers=_embedding_alone)
    assert len(list(tiny.engine.named_parameters())) == 1
    return [tiny.train_step(step).grad_norm for step in range(3)]


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("tp", [1, 2])
def test_norm_counts_a_tied_weight_once(tp: int, zero: int) -> None:
    uniform = ("--pp-partition-method", "uniform")
    expected = run_ranks(1, _norms_of_embedding_alone, case=Case(zero=zero))[0]
    for norms in run_ranks(2 * tp, _norms_of_embedding_alone, case=Case(tp, 2, 1, zero, more=uniform)):
        assert norms == pytest.approx(expected, rel=1e-5)
    assert min(expected) > 0


def test_tied_run_needs_no_second_weight() -> None:
    (outcome,) = run_ranks(1, run_case, case=Case(), steps=1)
    assert "lm_head.weight" not in outcome.weights
