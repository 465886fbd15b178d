"""Documents that don't see each other, at every layout (field reports D21, P9, P14)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity import compare, expected_outcome, outcome_of, within_tolerance
from benchmarks.parity_rows import DOCUMENT_SET
from benchmarks.resume import EVAL_INTERVAL, STEPS
from benchmarks.resume import compare as compare_resumed
from benchmarks.tiny_run import EOD_ID, Case, global_batch, reference
from megatron_ds.data.boundaries import DocumentBoundaries


def _name(case: Case) -> str:
    switches = [flag.strip("-") for flag in case.more if flag.startswith("--") and flag != "--eod-id"]
    recompute = "-recompute" if case.recompute else ""
    what = switches[0] if len(switches) == 1 else "all"
    return (
        f"tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}-mbs{case.micro_batch_size}{recompute}-{what}"
    )


@pytest.mark.parametrize("case", DOCUMENT_SET, ids=_name)
def test_any_layout_gives_the_numbers_of_one_process(case: Case) -> None:
    found = compare(case)
    facts = outcome_of(case).facts
    assert facts["engine"] == ("PipelineTrainEngine" if case.pp > 1 else "ZeroTrainEngine")
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
    assert (facts["micro_batch_size"], facts["num_micro_batches"]) == (case.micro_batch_size, case.num_micro_batches)
    assert facts["block_forwards"] == (2 if case.recompute else 1)
    assert facts["restarts_positions"] == ("--reset-position-ids" in case.more)
    assert facts["separates_documents"] == ("--reset-attention-mask" in case.more)
    assert within_tolerance(found, case.precision), found


def test_document_set_has_what_makes_a_difference() -> None:
    values: dict[str, set[Any]] = {
        "zero": {0, 1, 2, 3},
        "micro_batch_size": {1, 2, 4},
        "recompute": {False, True},
        "tied": {False, True},
        "precision": {"fp32", "bf16"},
    }
    for name, wanted in values.items():
        assert {getattr(case, name) for case in DOCUMENT_SET} == wanted
    assert {(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1)} == {(case.tp, case.pp, case.dp) for case in DOCUMENT_SET}


def test_every_switch_changes_the_losses() -> None:
    """Otherwise the rows above would agree for want of anything to disagree about."""
    fp32 = {case.more: reference(case) for case in DOCUMENT_SET if case.precision == "fp32" and case.tied}
    losses = sorted(expected_outcome(case).losses[0] for case in fp32.values())
    assert len(losses) == 4
    assert all(larger - smaller > 1e-4 for smaller, larger in pairwise(losses))


def test_tiny_batches_have_documents_and_a_sample_in_which_nothing_counts() -> None:
    batch = global_batch(0, 8, boundaries=DocumentBoundaries(EOD_ID, number_documents=True, mask_loss=True))
    assert batch.document_ids is not None
    assert int(batch.document_ids.amax(1).min()) >= 1
    # With micro-batches of one sample, the first has no token that counts.
    assert not batch.loss_mask[0].any()
    assert not batch.loss_mask[batch.tokens == EOD_ID].any()


@pytest.mark.slow
def test_resumed_run_is_the_straight_run(tmp_path: Path) -> None:
    # The corpus is Python's own sources, one token a byte: here each line is a document.
    flags = ("--eod-id", "10", "--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss")
    case = Case(pp=2, zero=1, micro_batch_size=2, dropout=0.1, recompute=True, more=flags)
    comparison = compare_resumed(case, tmp_path, (5,))
    assert comparison.differences() == []
    record = comparison.straight[0]
    assert (record.facts["restarts_positions"], record.facts["separates_documents"]) == (True, True)
    assert len(set(record.losses.values())) == STEPS
    assert list(record.validation_losses) == list(range(EVAL_INTERVAL, STEPS + 1, EVAL_INTERVAL))
    assert list(comparison.resumed[5][0].losses) == list(range(6, STEPS + 1))
