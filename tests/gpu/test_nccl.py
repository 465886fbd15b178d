"""The same numbers over NCCL: against plain PyTorch on one GPU, with the ZeRO stages and precisions of each layout.

Starting ranks takes far longer than these runs, so all runs of one layout share a world.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from benchmarks.parity import TOLERANCES
from benchmarks.tiny_run import (
    DOCUMENT_FLAGS,
    MODELS,
    Case,
    Outcome,
    Precision,
    TinyRun,
    difference,
    reference,
    run_case,
    run_cases,
    run_plain_pytorch,
)
from tests.dist.pool import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: NCCL has no CPU"),
]
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

VARIANTS: tuple[tuple[int, Precision], ...] = (
    (0, "fp32"),
    (1, "fp32"),
    (2, "fp32"),
    (3, "fp32"),
    (1, "bf16"),
    (2, "bf16"),
    (3, "bf16"),
    (1, "fp16"),
)


def _case(tp: int, pp: int, dp: int, zero: int, precision: Precision) -> Case:
    # A fixed scale: how the dynamic one moves is in test_fp16.py.
    more = ("--loss-scale", "128") if precision == "fp16" else ()
    return Case(tp, pp, dp, zero, precision, micro_batch_size=2, recompute=zero == 2, more=more)


def _layouts() -> Iterator[tuple[int, int, int]]:
    yield (1, 1, 1)
    if torch.cuda.device_count() > 1:
        yield from ((2, 1, 1), (1, 2, 1), (1, 1, 2))


def _legal(pp: int) -> tuple[tuple[int, Precision], ...]:
    return VARIANTS if pp == 1 else tuple((zero, precision) for zero, precision in VARIANTS if zero < 2)


@dataclass(frozen=True)
class _OneGpu:
    """What one GPU comes to."""

    plain: Outcome
    references: dict[Precision, Outcome]


def _run_one_gpu() -> _OneGpu:
    one = {precision: replace(_case(1, 1, 1, 1, precision), micro_batch_size=8) for _, precision in VARIANTS}
    outcomes = run_cases([reference(case) for case in one.values()])
    return _OneGpu(run_plain_pytorch(Case()), dict(zip(one, outcomes, strict=True)))


@cache
def _one_gpu() -> _OneGpu:
    (found,) = run_ranks(1, _run_one_gpu, device="cuda", timeout=150)
    assert isinstance(found, _OneGpu)
    return found


@cache
def _outcomes(tp: int, pp: int, dp: int) -> dict[tuple[int, Precision], Outcome]:
    cases = [_case(tp, pp, dp, zero, precision) for zero, precision in _legal(pp)]
    first_rank = run_ranks(tp * pp * dp, run_cases, device="cuda", timeout=150, cases=cases)[0]
    return dict(zip(_legal(pp), first_rank, strict=True))


@pytest.mark.parametrize(
    ("layout", "zero", "precision"),
    [(layout, zero, precision) for layout in _layouts() for zero, precision in _legal(layout[1])],
    ids=str,
)
def test_any_layout_gives_the_numbers_of_one_gpu(layout: tuple[int, int, int], zero: int, precision: Precision) -> None:
    outcome = _outcomes(*layout)[zero, precision]
    facts = outcome.facts
    assert (facts["tp"], facts["pp"], facts["dp"]) == layout
    assert facts["zero"] == zero
    assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    assert facts["block_forwards"] == (2 if zero == 2 else 1)
    assert facts["fused"], "torch's fused AdamW"
    expected = _one_gpu().plain if precision == "fp32" else _one_gpu().references[precision]
    found = difference(outcome, expected)
    tolerance = TOLERANCES["fp32" if precision == "fp32" else "bf16"]
    assert max(found.loss, found.norm, found.weights) <= tolerance, found
    assert found.weights_allclose or precision != "fp32"
    assert outcome.initial_weights.keys() == expected.initial_weights.keys()
    for name, weight in outcome.initial_weights.items():
        assert torch.equal(weight, expected.initial_weights[name]), name


@pytest.mark.parametrize("layout", list(_layouts()), ids=str)
def test_documents_that_do_not_see_each_other_give_the_numbers_of_one_gpu(layout: tuple[int, int, int]) -> None:
    case = replace(_case(*layout, 1, "fp32"), more=DOCUMENT_FLAGS)
    outcome: Outcome = run_ranks(case.world_size, run_case, device="cuda", timeout=150, case=case)[0]
    assert (outcome.facts["restarts_positions"], outcome.facts["separates_documents"]) == (True, True)
    (expected,) = run_ranks(1, run_plain_pytorch, device="cuda", timeout=150, case=reference(case))
    found = difference(outcome, expected)
    assert max(found.loss, found.norm, found.weights) <= TOLERANCES["fp32"], found


@pytest.mark.parametrize("layout", list(_layouts()), ids=str)
def test_bert_gives_the_numbers_of_one_gpu(layout: tuple[int, int, int]) -> None:
    case = replace(_case(*layout, 1, "fp32"), tied=True, more=MODELS["BERT"])
    outcome: Outcome = run_ranks(case.world_size, run_case, device="cuda", timeout=150, case=case)[0]
    assert "binary_head.weight" in outcome.weights
    (expected,) = run_ranks(1, run_plain_pytorch, device="cuda", timeout=150, case=reference(case))
    found = difference(outcome, expected)
    assert max(found.loss, found.norm, found.weights) <= TOLERANCES["fp32"], found


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bit_is_near_fp32(precision: Precision) -> None:
    found = difference(_one_gpu().references[precision], _one_gpu().plain)
    assert max(found.loss, found.norm) <= TOLERANCES["bf16"]


def _train_with_dropout() -> tuple[list[str], list[float]]:
    tiny = TinyRun(Case(tp=2, zero=1, precision="bf16", dropout=0.1, recompute=True))
    losses = [float(tiny.train_step(step).loss) for step in range(5)]
    return tiny.engine.differing_replicas(), losses


@needs_two_gpus
def test_replicas_stay_equal_under_dropout() -> None:
    (different, losses), (_, other_losses) = run_ranks(2, _train_with_dropout, device="cuda")
    assert different == []
    assert losses == other_losses
