"""Optimizer state and parameters in host memory, and parameters on a disk, give the numbers of one process."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.levers import OFFLOAD_ROWS, Row, compare
from benchmarks.parity import expected_outcome, outcome_of, within_tolerance
from benchmarks.tiny_run import Case, Precision, TinyRun, difference, reference, run_case
from megatron_ds.cli.offload import machine_problems
from tests.dist.pool import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (shutil.which("g++") and shutil.which("ninja")), reason="DeepSpeed compiles its CPU Adam with g++ and ninja"
    ),
]


def _name(row: Row) -> str:
    case = row.plain
    return f"{row.lever}-tp{case.tp}dp{case.dp}-z{case.zero}-{case.precision}".replace(" ", "_")


def _compile() -> None:
    TinyRun(replace(OFFLOAD_ROWS[0].case, tp=1, dp=1))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compiles CPU Adam once: on a busy machine that takes longer than ranks are waited for."""
    run_ranks(1, _compile, timeout=550)


@pytest.mark.parametrize("row", OFFLOAD_ROWS, ids=_name)
def test_offload_to_host_memory_gives_the_numbers_of_one_process(row: Row) -> None:
    found = compare(row)
    facts, case = outcome_of(row.case).facts, row.plain
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
    assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[case.precision]
    assert facts["optimizer"].endswith("DeepSpeedCPUAdam")
    assert within_tolerance(found, case.precision), found


# DeepSpeed keeps in memory what is less than 1 MiB. A rank's half of a matrix of the MLP is more.
WIDE = Case(1, 1, 2, 3, "fp32", micro_batch_size=2, num_layers=2, more=("--hidden-size", "384"))


def _on_disk(folder: Path) -> dict[str, Any]:
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "offload_optimizer": {"device": "cpu"},
        # One buffer holds a rank's share of the largest parameter.
        "offload_param": {"device": "nvme", "nvme_path": str(folder), "buffer_size": 384 * 4 * 384 // 2},
    }
    return {"zero_optimization": zero, "aio": {"block_size": 65_536}}


needs_libaio = pytest.mark.skipif(
    bool(machine_problems(_on_disk(Path("/")), os.environ)), reason="DeepSpeed compiles async_io against libaio"
)


@needs_libaio
@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_parameters_on_a_disk_give_the_numbers_of_one_process(
    tmp_path: Path, tp: int, dp: int, precision: Precision
) -> None:
    plain = replace(WIDE, tp=tp, dp=dp, precision=precision)
    outcome = run_ranks(2, run_case, case=replace(plain, deepspeed_json=json.dumps(_on_disk(tmp_path))), timeout=500)[0]
    assert (outcome.facts["tp"], outcome.facts["dp"], outcome.facts["zero"]) == (tp, dp, 3)
    # Halves of bf16 matrices are less than 1 MiB.
    assert bool(list(tmp_path.rglob("*.swp"))) == (precision == "fp32")
    found = difference(outcome, expected_outcome(reference(plain)))
    assert within_tolerance(found, precision), found


def _straight_and_resumed(case: Case, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of two steps after a save, and of the same two after loading it."""
    straight = TinyRun(case)
    losses = []
    for step in range(4):
        if step == 2:
            straight.save(folder)
        losses.append(float(straight.train_step(step).loss))
    torch.distributed.barrier()
    resumed = TinyRun(case)
    resumed.load(folder)
    return losses[2:], [float(resumed.train_step(step).loss) for step in (2, 3)]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_resumed_run_with_offload_to_host_memory_is_the_straight_run(tmp_path: Path, zero: int) -> None:
    blocks = {"offload_optimizer": {"device": "cpu"}} | ({"offload_param": {"device": "cpu"}} if zero == 3 else {})
    case = replace(WIDE, zero=zero, deepspeed_json=json.dumps({"zero_optimization": {"stage": zero, **blocks}}))
    for straight, resumed in run_ranks(2, _straight_and_resumed, case=case, folder=tmp_path, timeout=500):
        assert resumed == straight


@needs_libaio
def test_resumed_run_with_parameters_on_a_disk_is_the_straight_run(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    case = replace(WIDE, deepspeed_json=json.dumps(_on_disk(tmp_path / "disk")))
    for straight, resumed in run_ranks(2, _straight_and_resumed, case=case, folder=tmp_path / "saved", timeout=500):
        assert resumed == straight
