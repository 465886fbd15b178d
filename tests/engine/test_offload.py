"""Optimizer state in host memory gives the numbers of one process."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.parity import expected_outcome, within_tolerance
from benchmarks.tiny_run import Case, Precision, difference, reference, run_case
from tests.dist.pool import run_ranks

OFFLOAD = json.dumps({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("ninja")), reason="DeepSpeed compiles its CPU Adam with g++ and ninja"
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_offloaded_optimizer_gives_the_numbers_of_one_process(precision: Precision) -> None:
    case = Case(1, 1, 2, 2, precision, micro_batch_size=2, deepspeed_json=OFFLOAD)
    outcome = run_ranks(2, run_case, case=case, timeout=500)[0]
    assert outcome.facts["zero"] == 2
    assert outcome.facts["dp"] == 2
    assert outcome.facts["optimizer"].endswith("DeepSpeedCPUAdam")
    found = difference(outcome, expected_outcome(reference(Case(precision=precision))))
    assert within_tolerance(found, precision), found
