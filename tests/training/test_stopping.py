"""A run ends before its last step on all ranks after the same step, saved (field report C6)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]

from benchmarks.tiny_run import Case
from megatron_ds.training.stopping import Agreement, Stopping, StopSignals
from tests.dist.pool import run_ranks
from tests.engine.saving_run import SavingRun
from tests.training.test_replica_check import FakeEngine, train_fake


@pytest.mark.parametrize("rank_0_first", [True, False])
@pytest.mark.parametrize("wishing", [0, 1])
def test_ranks_that_agree_stop_after_the_same_step(wishing: int, rank_0_first: bool) -> None:
    store = HashStore()
    ranks = [Agreement(store, rank, 2) for rank in (0, 1)]
    stopped_after: dict[int, tuple[int, str]] = {}
    for step in range(1, 10):
        for rank in (0, 1) if rank_0_first else (1, 0):
            # Until it stops, the one rank wants to from step 3 on.
            reason = ranks[rank].reason(step, "SIGTERM" if rank == wishing and step >= 3 else None)
            if reason is not None:
                stopped_after.setdefault(rank, (step, reason))
    first, second = stopped_after[0], stopped_after[1]
    assert first == second
    # Word from another rank that comes after rank 0 has looked takes a step longer.
    assert first == ((4, "SIGTERM") if wishing == 0 else (4 + rank_0_first, "SIGTERM (rank 1)"))


def test_one_rank_stops_at_once() -> None:
    agreement = Agreement(HashStore(), 0, 1)
    assert agreement.reason(3, None) is None
    assert agreement.reason(4, "SIGINT") == "SIGINT"


def test_signals_are_noted_and_the_second_sigint_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals(announce=True) as signals:
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == "SIGTERM"
        assert signal.getsignal(signal.SIGINT) != signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGTERM"
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert capfd.readouterr().err.count("SIGTERM: the run ends after a step") == 1


def _train_until_stopped(*flags: str, start: float | None = None, fails: bool = False) -> tuple[int, list[int]]:
    """The last step of a run of seven, and the steps that were saved."""
    engine, saved = FakeEngine(), []
    checkpoint = Case(more=flags).resolve().run.checkpoint
    start = time.monotonic() if start is None else start
    signals = StopSignals(announce=False)
    stop = Stopping(checkpoint, start, signals, lambda: fails, Agreement(HashStore(), 0, 1))
    train_fake(engine, *flags, save=lambda *_: saved.append(engine.progress.step), stop=stop)
    return engine.progress.step, saved


def test_exit_interval_saves_and_ends_at_its_next_multiple() -> None:
    assert _train_until_stopped("--save", "x", "--exit-interval", "3") == (3, [3])
    assert _train_until_stopped("--exit-interval", "3") == (3, [])


def test_step_that_is_saved_anyway_is_saved_once_where_the_run_ends() -> None:
    assert _train_until_stopped("--save", "x", "--save-interval", "2", "--exit-interval", "4") == (4, [2, 4])
    assert _train_until_stopped("--save", "x", "--save-interval", "2", "--exit-interval", "7") == (7, [2, 4, 6, 7])


def test_exit_duration_counts_from_the_start() -> None:
    flags = ("--save", "x", "--exit-duration-in-mins", "10")
    assert _train_until_stopped(*flags) == (7, [7])
    assert _train_until_stopped(*flags, start=time.monotonic() - 601) == (1, [1])


def test_failed_save_in_the_background_ends_the_run_at_the_next_step() -> None:
    # The saver raises what it is about.
    assert _train_until_stopped("--save", "x", "--save-interval", "7", fails=True) == (1, [1])


def _stop_by_signal(case: Case, folder: Path) -> tuple[int, str | None]:
    """Trains until rank 3, which gets SIGTERM in its third step, has made all ranks stop; saves."""
    run = SavingRun(case, folder)
    store: Any = FileStore(str(folder / "store"), case.world_size)
    with StopSignals(announce=False) as signals, run.saver:
        agreement = Agreement(store, run.mpu.global_rank, case.world_size)
        stop = Stopping(run.run.checkpoint, time.monotonic(), signals, lambda: run.saver.has_failed, agreement)
        reason = None
        while reason is None:
            if run.engine.progress.step == 2 and run.mpu.global_rank == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            run.step()
            reason = stop(run.engine.progress.step)
        run.saver(folder)
    return run.engine.progress.step, reason


def test_signal_to_one_rank_has_all_ranks_save_together(tmp_path: Path) -> None:
    case = Case(pp=2, dp=2, zero=1, num_layers=2)
    first, *others = run_ranks(4, _stop_by_signal, case=case, folder=tmp_path)
    assert first[0] in (4, 5)
    assert first[1] == "SIGTERM (rank 3)"
    assert others == [first] * 3
    assert (tmp_path / "latest").read_text() == f"global_step{first[0]}"
