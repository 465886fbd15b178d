"""A checkpoint that is written while training goes on holds the state of its own step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.tiny_run import Case
from megatron_ds.checkpoint import find_checkpoint
from megatron_ds.checkpoint.hashed_file import HashedFile
from megatron_ds.errors import CheckpointError
from tests.dist.pool import run_ranks
from tests.engine.saving_run import SavingRun

ASYNC = ("--async-save", "--save", "anywhere")
CASES = [
    Case(dp=2, zero=1, precision="bf16"),
    Case(dp=2, zero=3),
    Case(pp=2, zero=1, tied=True),
    Case(tp=2, zero=0),
]


def _hold_files_until(released: threading.Event) -> None:
    """Has each file wait before its first piece."""
    write = HashedFile.write

    def waiting(file: HashedFile, piece: bytes | memoryview) -> int:
        assert released.wait(60)
        return write(file, piece)

    HashedFile.write = waiting  # type: ignore[method-assign]


def save_while_training(case: Case, folder: Path) -> bool:
    """Saves step 1, trains two more steps while nothing of it is written, and lets it be written."""
    run = SavingRun(case, folder)
    released = threading.Event()
    if case.more:
        _hold_files_until(released)
    run.step_and_save()
    is_saved_at_once = (folder / "latest").exists()
    if case.more:
        run.step()
        run.step()
    released.set()
    run.saver.finish()
    return is_saved_at_once


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or vars(one) == vars(other)


def assert_same_files(one: Path, other: Path) -> None:
    """Asserts that two runs have saved the same states in their first step."""
    names = {path.name for path in (one / "global_step1").glob("*.pt")}
    assert names
    assert names == {path.name for path in (other / "global_step1").glob("*.pt")}
    for name in names:
        states = [
            torch.load(run / "global_step1" / name, map_location="cpu", weights_only=False) for run in (one, other)
        ]
        assert _same(*states), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"tp{case.tp}pp{case.pp}dp{case.dp}z{case.zero}")
def test_files_written_while_training_goes_on_are_those_of_a_save_that_waits(case: Case, tmp_path: Path) -> None:
    background = Case(**{**vars(case), "more": ASYNC})
    assert run_ranks(case.world_size, save_while_training, case=case, folder=tmp_path / "waits") == [True] * 2
    assert run_ranks(2, save_while_training, case=background, folder=tmp_path / "goes_on") == [False] * 2
    assert_same_files(tmp_path / "waits", tmp_path / "goes_on")


def _save_two_in_a_row(case: Case, folder: Path) -> tuple[bool, bool]:
    run = SavingRun(case, folder)
    released = threading.Event()
    _hold_files_until(released)
    run.step_and_save()
    before = (folder / "latest").exists()
    threading.Timer(0.2, released.set).start()
    run.step_and_save()
    first_is_whole = (folder / "global_step1" / "manifest.json").exists()
    run.saver.finish()
    return before, first_is_whole


def test_second_save_waits_for_the_first(tmp_path: Path) -> None:
    assert run_ranks(2, _save_two_in_a_row, case=Case(dp=2, zero=1, more=ASYNC), folder=tmp_path) == [(False, True)] * 2
    assert find_checkpoint(tmp_path).tag == "global_step2"


def _fail_in_background(case: Case, folder: Path) -> tuple[bool, str]:
    run = SavingRun(case, folder)
    (folder / "global_step1").write_text("in the way")
    message = ""
    try:
        with run.saver:
            run.step_and_save()
            flight = run.saver._in_flight
            assert flight is not None
            flight.exception(timeout=60)
            has_failed = run.saver.has_failed
    except CheckpointError as error:
        message = str(error)
    return has_failed, message


def test_save_that_failed_in_the_background_is_told_at_the_latest_at_the_end(tmp_path: Path) -> None:
    results = run_ranks(2, _fail_in_background, case=Case(dp=2, zero=1, more=ASYNC), folder=tmp_path)
    assert [has_failed for has_failed, _ in results] == [True, True]
    assert len({message for _, message in results}) == 1
    assert f"{tmp_path / 'global_step1'} is not saved" in results[0][1]


def _memory_of_saves(case: Case, folder: Path) -> list[float]:
    """Memory of this process, in MiB, after 20 saves and after 60."""
    run = SavingRun(case, folder)
    process = psutil.Process()
    memory = []
    for number in range(1, 61):
        run.step_and_save()
        if number in (20, 60):
            run.saver.finish()
            memory.append(process.memory_info().rss / 2**20)
    return memory


@pytest.mark.parametrize("more", [("--save", "anywhere"), ASYNC], ids=["sync", "async"])
def test_memory_does_not_grow_from_save_to_save(more: tuple[str, ...], tmp_path: Path) -> None:
    """F1."""
    case = Case(zero=1, global_batch_size=1, more=(*more, "--keep-last", "2"))
    ((early, late),) = run_ranks(1, _memory_of_saves, case=case, folder=tmp_path)
    assert late - early < 4  # MiB, of 40 saves: a tenth of what the report allows
    assert sorted(path.name for path in tmp_path.glob("global_step*")) == ["global_step59", "global_step60"]
