"""The same run through `python`, `torchrun` and `deepspeed`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.launch.helpers import PRETRAIN, deepspeed, launch, losses, tiny_run, torchrun


@contextmanager
def taken_port(port: int = 29500) -> Iterator[None]:
    """Listens on a port, as another job of this host does."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # taken already, which serves as well
            listener.bind(("", port))
            listener.listen()
        yield


@pytest.mark.slow
def test_python_torchrun_and_deepspeed_train_alike_with_the_launchers_port_taken(corpus: str, tmp_path: Path) -> None:
    flags = tiny_run(corpus, save_interval="3")
    commands = {
        "python": [sys.executable, PRETRAIN, "--local-rank", "0", *flags],
        "torchrun": torchrun(2, PRETRAIN, "--local-rank", "1", *flags),
        # Adds --local_rank=N itself.
        "deepspeed": deepspeed(2, PRETRAIN, *flags),
    }
    curves = {}
    for name, command in commands.items():
        with taken_port():
            finished = launch([*command, "--save", name], tmp_path)
        assert finished.exit_code == 0, finished.output
        assert f"on {'1 process' if name == 'python' else '2 processes'}" in finished.output
        curves[name] = losses(tmp_path / name)
    kinds = [(1, "train"), (2, "train"), (3, "train"), (3, "valid")]
    assert [line[:2] for line in curves["python"]] == kinds
    assert curves["torchrun"] == curves["deepspeed"], "the same processes: equal to the bit"
    assert [line[:2] for line in curves["deepspeed"]] == kinds
    assert [loss for *_, loss in curves["deepspeed"]] == pytest.approx(
        [loss for *_, loss in curves["python"]], rel=1e-5
    )
