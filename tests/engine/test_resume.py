"""A run that was stopped and loaded goes on as if it had not been, to the bit (field report C2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.resume import CASES, EVAL_INTERVAL, STEPS, compare
from benchmarks.tiny_run import Case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "stops"),
    [(case, (1, 5) if case.pp > 1 else (5,)) for case in CASES],
    ids=[f"tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}" for case in CASES],
)
def test_resumed_run_is_the_straight_run(case: Case, stops: tuple[int, ...], tmp_path: Path) -> None:
    comparison = compare(case, tmp_path, stops)
    assert comparison.differences() == []
    for record in comparison.straight:
        assert (record.facts["tp"], record.facts["pp"], record.facts["dp"]) == (case.tp, case.pp, case.dp)
        assert record.facts["zero"] == case.zero
        assert list(record.losses) == list(range(1, STEPS + 1))
        assert list(record.validation_losses) == list(range(EVAL_INTERVAL, STEPS + 1, EVAL_INTERVAL))
        # Nothing stands still that should move.
        for values in (record.losses, record.norms, record.learning_rates, record.batch_hashes, record.random_states):
            assert len(set(values.values())) == STEPS
    # One loss for all ranks; another batch for each data-parallel rank.
    assert len({record.losses[STEPS] for record in comparison.straight}) == 1
    assert len({record.batch_hashes[STEPS] for record in comparison.straight}) == case.dp
    for stop in stops:
        assert list(comparison.resumed[stop][0].losses) == list(range(stop + 1, STEPS + 1))
