"""Ports of several jobs on one host, and which rank's failure counts; in one process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from megatron_ds.errors import ConfigError, DataError, TrainingError

TIMEOUT = timedelta(seconds=20)
LOST_PEER = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another job has."""
    with socket.create_server(("", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The environment of rank 0 of 2 under DeepSpeed's launcher."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "CROSS_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    return monkeypatch


def test_meet_of_two_jobs_with_a_taken_port_gives_each_its_own(
    world: pytest.MonkeyPatch, tmp_path: Path, taken: int
) -> None:
    from megatron_ds.engine import rendezvous

    stores, ports = [], []
    for job in ("first", "second"):
        world.setenv("MASTER_PORT", str(taken))
        note = tmp_path / job
        world.setattr(rendezvous, "_port_note", lambda note=note: note)
        stores.append(rendezvous.meet(0, 2, TIMEOUT))
        ports.append(int(os.environ["MASTER_PORT"]))
        assert int(note.read_text()) == ports[-1]
        # Rank 1 of the same job, told the same taken port by the launcher.
        world.setenv("MASTER_PORT", str(taken))
        peer = rendezvous.meet(1, 2, TIMEOUT)
        assert int(os.environ["MASTER_PORT"]) == ports[-1]
        peer.set("job", job)
        rendezvous.forget_port(0)
        assert not note.exists()
    assert len({taken, *ports}) == 3
    assert [store.get("job") for store in stores] == [b"first", b"second"]


def test_meet_of_several_hosts_with_a_taken_port_names_it_and_the_way_out(
    world: pytest.MonkeyPatch, taken: int
) -> None:
    from megatron_ds.engine import rendezvous

    world.setenv("CROSS_SIZE", "2")
    world.setenv("MASTER_PORT", str(taken))
    with pytest.raises(TrainingError, match=f"can't listen on port {taken}.*\n(.*\n)*.*--master_port N"):
        rendezvous.meet(0, 2, TIMEOUT)


def test_meet_of_one_process_needs_no_port(world: pytest.MonkeyPatch) -> None:
    from megatron_ds.engine import rendezvous

    rendezvous.meet(0, 1, TIMEOUT)
    assert os.environ["MASTER_PORT"] == "0"


def test_failing_together_makes_later_ranks_end_with_the_code_of_the_first(world: pytest.MonkeyPatch) -> None:
    from megatron_ds.engine import failure, rendezvous

    store = rendezvous.meet(0, 2, TIMEOUT)
    world.setenv("RANK", "1")
    with pytest.raises(DataError), failure.failing_together():
        raise DataError("too short")
    world.setenv("RANK", "0")
    with pytest.raises(failure.PeerError) as caught, failure.failing_together():
        raise RuntimeError(LOST_PEER)
    assert caught.value.exit_code == DataError.exit_code == 3
    assert "rank 1 failed first, with exit code 3" in str(caught.value)
    assert "here it showed as RuntimeError: [../third_party/gloo" in str(caught.value)
    with pytest.raises(failure.PeerError) as caught, failure.failing_together():
        raise ConfigError("two layers")
    assert "here it showed as ConfigError: two layers" in str(caught.value)
    rendezvous.forget_port(0)
    del store


def test_failing_together_after_a_rank_was_killed_blames_no_rank_that_only_lost_it(world: pytest.MonkeyPatch) -> None:
    from megatron_ds.engine import failure, rendezvous

    world.setattr(failure, "_SECONDS_FOR_CAUSE", 0.1)
    world.setenv("WORLD_SIZE", "4")
    store = rendezvous.meet(0, 4, TIMEOUT)
    for rank in ("1", "3"):  # those beside rank 2
        world.setenv("RANK", rank)
        with pytest.raises(failure.LostPeerError) as caught, failure.failing_together():
            raise RuntimeError(LOST_PEER)
        assert caught.value.exit_code == 1
        assert "no rank has told why: one of them may have been killed" in str(caught.value)
        assert "here it showed as RuntimeError: [../third_party/gloo" in str(caught.value)
        assert "first" not in str(caught.value)
    world.setenv("RANK", "0")
    with pytest.raises(failure.LostPeerError):
        failure.raise_if_peer_failed()
    # One that knows better, if late.
    with pytest.raises(DataError), failure.failing_together():
        raise DataError("too short")
    rendezvous.forget_port(0)
    del store


def test_failing_together_without_rank_0_tells_of_a_lost_rank(world: pytest.MonkeyPatch, taken: int) -> None:
    from megatron_ds.engine import failure

    world.setattr(failure, "_SECONDS_FOR_CAUSE", 0.1)
    world.setenv("RANK", "1")
    with socket.socket() as probe:
        probe.bind(("", 0))  # bound and not listening: refuses connections
        world.setenv("MASTER_PORT", str(probe.getsockname()[1]))
        with pytest.raises(failure.LostPeerError, match="closed by peer"), failure.failing_together():
            raise RuntimeError(LOST_PEER)


def test_failing_together_of_one_process_keeps_the_error(world: pytest.MonkeyPatch) -> None:
    from megatron_ds.engine import failure

    world.setenv("WORLD_SIZE", "1")
    with pytest.raises(ZeroDivisionError), failure.failing_together():
        raise ZeroDivisionError
