"""The same loss, gradient norm and weights at every layout (field reports P1, P2, P6, M2)."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pytest
import torch

from benchmarks.parity import compare, expected_outcome, outcome_of, within_tolerance
from benchmarks.parity_rows import COVERING_SET, LAYOUTS, full_set
from benchmarks.tiny_run import Case, difference, reference, run_case
from tests.dist.pool import run_ranks


def _name(case: Case) -> str:
    head = "tied" if case.tied else "untied"
    recompute = "-recompute" if case.recompute else ""
    return (
        f"tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}-{head}-mbs{case.micro_batch_size}{recompute}"
    )


def _assert_in_force(case: Case) -> None:
    """The run is the one that was asked for, as far as the built objects tell."""
    facts = outcome_of(case).facts
    assert facts["engine"] == ("PipelineTrainEngine" if case.pp > 1 else "ZeroTrainEngine")
    assert (facts["tp"], facts["pp"], facts["dp"]) == (case.tp, case.pp, case.dp)
    assert facts["zero"] == case.zero
    assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[case.precision]
    assert facts["gradient accumulation"] == "float32"
    assert facts["micro_batch_size"] == case.micro_batch_size
    assert facts["num_micro_batches"] == case.num_micro_batches
    assert facts["block_forwards"] == (2 if case.recompute else 1)
    assert ("lm_head.weight" in outcome_of(case).weights) == (not case.tied)


@pytest.mark.parametrize("case", COVERING_SET, ids=_name)
def test_any_layout_gives_the_numbers_of_one_process(case: Case) -> None:
    """P1, P6."""
    found = compare(case)
    _assert_in_force(case)
    assert within_tolerance(found, case.precision), found


@pytest.mark.parametrize("case", COVERING_SET, ids=_name)
def test_any_layout_starts_with_the_same_weights(case: Case) -> None:
    """P2."""
    ours, theirs = outcome_of(case).initial_weights, expected_outcome(reference(case)).initial_weights
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_covering_set_has_every_legal_pair_of_values() -> None:
    axes = ("tp", "pp", "dp", "zero", "precision", "tied", "micro_batch_size", "recompute")

    def pairs(case: Case) -> set[Any]:
        values = [(axis, value) for axis, value in asdict(case).items() if axis in axes]
        layout = ("layout", (case.tp, case.pp, case.dp))
        return {*combinations(values, 2), (layout, ("precision", case.precision))}

    legal = {
        replace(case, micro_batch_size=size, recompute=recompute)
        for case in full_set()
        for size in (1, 2, 4)
        for recompute in (False, True)
    }
    assert {(case.tp, case.pp, case.dp) for case in COVERING_SET} == set(LAYOUTS)
    assert set().union(*map(pairs, COVERING_SET)) == set().union(*map(pairs, legal))


def test_clipping_takes_effect() -> None:
    """P6."""
    case = Case(2, 2, 1, 1)
    clipped = outcome_of(case)
    assert min(clipped.norms) > 0.1
    free: Any = run_ranks(case.world_size, run_case, case=replace(case, more=("--clip-grad", "0")))[0]
    assert free.norms[0] == pytest.approx(clipped.norms[0], rel=1e-6)
    assert difference(free, clipped).weights > 1e-2


def test_bf16_is_near_fp32() -> None:
    """M2."""
    # Not the tolerance between layouts: here the precisions themselves are compared, at 4 micro-batches.
    found = difference(outcome_of(Case(1, 1, 1, 1, "bf16", True, 2)), expected_outcome(reference(Case())))
    assert found.loss < 2e-2
    assert found.norm < 2e-2
