"""Sequence parallelism: the same numbers and gradients, masks of its own, slices between layers (P4, P15, P17)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.parity import compare, outcome_of, within_tolerance
from benchmarks.parity_rows import SEQUENCE_SET
from benchmarks.tiny_run import DOCUMENT_FLAGS, MODELS, SEQ_LENGTH, Case, TinyRun
from tests.dist.pool import run_ranks
from tests.engine.test_dropout_and_recompute import DROPPING, masks_of_a_step, same
from tests.engine.test_models import assert_same_gradients

FLAG = ("--sequence-parallel",)


def _name(case: Case) -> str:
    model = next((name for name, flags in MODELS.items() if case.more[: len(flags)] == flags), "GPT")
    documents = "-documents" if set(DOCUMENT_FLAGS) <= set(case.more) else ""
    return f"{model}-tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}-r{case.recompute:d}{documents}"


@pytest.mark.parametrize("case", SEQUENCE_SET, ids=_name)
def test_any_layout_gives_the_numbers_of_one_process(case: Case) -> None:
    found, facts = compare(case), outcome_of(case).facts
    assert facts["sequence_parallel"]
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
    assert facts["block_forwards"] == (2 if case.recompute else 1)
    assert within_tolerance(found, case.precision), found


def test_sequence_set_has_every_stage_of_zero_and_both_engines() -> None:
    assert {case.zero for case in SEQUENCE_SET} == {0, 1, 2, 3}
    assert {case.pp for case in SEQUENCE_SET} == {1, 2}
    assert {case.precision for case in SEQUENCE_SET} == {"fp32", "bf16"}


@pytest.mark.parametrize("model", ["GPT", "Llama 3.1", "Qwen", "BLOOM", "post-LN"])
def test_gradients_of_norms_and_row_biases_are_those_of_one_process(model: str) -> None:
    flags = MODELS.get(model, ())
    assert_same_gradients(Case(2, zero=0, micro_batch_size=8, more=(*flags, "--clip-grad", "0", *FLAG)))


def _slices(case: Case) -> tuple[list[tuple[int, ...]], list[str]]:
    """Shapes of the residual stream around this rank's layers, and the replicas that differ after some steps."""
    tiny = TinyRun(case)
    shapes: list[tuple[int, ...]] = []
    for block in tiny.blocks:
        block.input_layernorm.register_forward_hook(lambda _, entered, left: shapes.append(tuple(left.shape)))
        block.attention.register_forward_hook(lambda _, entered, left: shapes.append(tuple(left.shape)))
    for step in range(4):
        tiny.train_step(step)
    return shapes, tiny.engine.differing_replicas()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_have_a_slice_of_the_sequence_and_replicas_stay_equal(precision: Any) -> None:
    case = Case(2, zero=1, precision=precision, micro_batch_size=4, dropout=0.1, num_layers=2, more=FLAG)
    for shapes, different in run_ranks(2, _slices, case=case):
        assert set(shapes) == {(SEQ_LENGTH // 2, 4, 32)}
        assert different == []


def test_each_rank_drops_elements_of_its_own_slice() -> None:
    case = replace(DROPPING, tp=2, zero=1, micro_batch_size=4, more=FLAG)
    first, second = run_ranks(2, masks_of_a_step, case=case)
    assert {tuple(mask.shape) for mask in first.residual} == {(SEQ_LENGTH // 2, 4, 32)}
    assert len(first.residual) == 2 * case.num_layers + 1
    assert not any(same(first.residual, second.residual))
    assert not any(same(first.residual[:-1], first.residual[1:]))
    assert not any(same(first.attention, second.attention))


def _losses(case: Case) -> list[float]:
    tiny = TinyRun(case)
    return [float(tiny.train_step(step).loss) for step in range(3)]


def test_recompute_draws_the_same_masks() -> None:
    case = replace(DROPPING, tp=2, zero=1, more=FLAG)
    assert run_ranks(2, _losses, case=case) == run_ranks(2, _losses, case=replace(case, recompute=True))
