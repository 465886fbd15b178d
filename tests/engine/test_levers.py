"""Recomputation of every kind and uneven stages give the numbers of one process."""

from __future__ import annotations

import pytest

from benchmarks.levers import LEVER_ROWS, Row, compare
from benchmarks.parity import outcome_of, within_tolerance


def _name(row: Row) -> str:
    case = row.plain
    return f"{row.lever}-tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}".replace(" ", "_")


def _assert_layout(row: Row) -> None:
    facts, case = outcome_of(row.case).facts, row.plain
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
    assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[case.precision]


def _block_forwards(row: Row) -> float:
    """How often each layer of rank 0 runs in one micro-batch."""
    if row.lever == "full, 1 layer of each stage":
        return 1.5  # of two layers
    if row.lever == "stages `layers:0,4`":
        return 0
    return 2 if row.lever.startswith("full") else 1


@pytest.mark.parametrize("row", LEVER_ROWS, ids=_name)
def test_lever_gives_the_numbers_of_one_process(row: Row) -> None:
    found = compare(row)
    _assert_layout(row)
    assert outcome_of(row.case).facts["block_forwards"] == _block_forwards(row)
    assert within_tolerance(found, row.plain.precision), found
