"""Saving from a GPU: copies in page-locked memory, and training that goes on beside the writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tiny_run import Case
from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase
from tests.dist.pool import run_ranks
from tests.engine.saving_run import SavingRun
from tests.engine.test_async_save import ASYNC, assert_same_files, save_while_training


@pytest.mark.gpu
@pytest.mark.parametrize("case", [Case(zero=1, precision="bf16"), Case(zero=3, precision="bf16"), Case(zero=0)])
def test_files_written_while_training_goes_on_are_those_of_a_save_that_waits(case: Case, tmp_path: Path) -> None:
    ways = {"waits": case, "goes_on": replace(case, more=ASYNC)}
    for way, each in ways.items():
        run_ranks(1, save_while_training, case=each, folder=tmp_path / way, device="cuda")
    assert_same_files(tmp_path / "waits", tmp_path / "goes_on")


def _are_pinned(case: Case, folder: Path) -> list[bool]:
    run = SavingRun(case, folder)
    run.step_and_save()
    run.saver.finish()
    assert isinstance(run.engine, DeepSpeedEngineBase)
    return [buffer.is_pinned() for buffer in run.engine._writer._copies._buffers.values() if buffer.numel()]


@pytest.mark.gpu
def test_copies_are_in_page_locked_memory(tmp_path: Path) -> None:
    (pinned,) = run_ranks(1, _are_pinned, case=Case(zero=1, more=ASYNC), folder=tmp_path, device="cuda")
    assert pinned
    assert all(pinned)
