"""Optimizer state and parameters in host memory or on a disk give the numbers of one process."""

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
from benchmarks.tiny_run import Case, TinyRun, difference, reference, run_case
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


@pytest.mark.parametrize("row", OFFLOAD_ROWS, ids=_name)
def test_offload_to_host_memory_gives_the_numbers_of_one_process(row: Row) -> None:
    found = compare(row)
    facts, case = outcome_of(row.case).facts, row.plain
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
    assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[case.precision]
    assert facts["optimizer"].endswith("DeepSpeedCPUAdam")
    assert within_tolerance(found, case.precision), found


def _on_disk(folder: Path, **more: bool) -> dict[str, Any]:
    disk = {"device": "nvme", "nvme_path": str(folder)}
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "offload_optimizer": {**disk, **more},
        # One buffer holds the largest parameter of the tiny model.
        "offload_param": {**disk, "buffer_size": 16_384},
    }
    return {"zero_optimization": zero, "aio": {"block_size": 65_536}}


needs_libaio = pytest.mark.skipif(
    bool(machine_problems(_on_disk(Path("/")), os.environ)), reason="DeepSpeed compiles async_io against libaio"
)


@needs_libaio
@pytest.mark.parametrize("is_pipelined", [False, True])
def test_offload_to_a_disk_gives_the_numbers_of_one_process(tmp_path: Path, is_pipelined: bool) -> None:
    plain = Case(1, 1, 2, 3, "fp32", micro_batch_size=2)
    content = _on_disk(tmp_path, pipeline_read=is_pipelined, pipeline_write=is_pipelined)
    outcome = run_ranks(2, run_case, case=replace(plain, deepspeed_json=json.dumps(content)), timeout=500)[0]
    assert list(tmp_path.rglob("*.swp"))
    found = difference(outcome, expected_outcome(reference(plain)))
    assert within_tolerance(found, "fp32"), found


def _straight_and_resumed(case: Case, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of four steps, and of two more after loading what was saved after two."""
    straight, resumed = TinyRun(case), None
    losses = []
    for step in range(4):
        if step == 2:
            straight.engine.save(folder)
        losses.append(float(straight.train_step(step).loss))
    torch.distributed.barrier()
    resumed = TinyRun(case)
    resumed.engine.load(folder, "global_step2")
    return losses[2:], [float(resumed.train_step(step).loss) for step in (2, 3)]


@needs_libaio
def test_resumed_run_with_offload_to_a_disk_is_the_straight_run(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    case = Case(1, 1, 2, 3, micro_batch_size=2, deepspeed_json=json.dumps(_on_disk(tmp_path / "disk")))
    for straight, resumed in run_ranks(2, _straight_and_resumed, case=case, folder=tmp_path / "saved", timeout=500):
        assert resumed == straight
