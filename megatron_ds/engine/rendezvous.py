"""Where the processes of a run meet: a store that the launcher's environment leads to, and a port that is free."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistNetworkError, HashStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from megatron_ds.errors import Problem, Source, TrainingError

# Longer than the slowest import of torch on a busy file system.
_SECONDS_FOR_PORT = 300.0


def meet(rank: int, world_size: int, timeout: timedelta) -> Store:
    """The store through which the processes find each other.

    DeepSpeed's launcher gives every job of a host the same port, 29500, without looking whether it is taken. Its
    jobs on one host therefore choose another one when they have to. What else starts processes chose on purpose, or
    looked.

    Args:
        rank: of this process.
        world_size: number of processes.
        timeout: how long to wait for the others.

    Returns:
        The store. ``MASTER_PORT`` in the environment is its port afterwards.

    Raises:
        TrainingError: the port is taken and can't be changed.
    """
    if world_size == 1:
        return HashStore()
    if os.environ.get("CROSS_SIZE") == "1" and "TORCHELASTIC_RUN_ID" not in os.environ:
        return _meet_on_free_port(rank, world_size, timeout)
    try:
        store: Store = next(rendezvous("env://", rank, world_size, timeout=timeout))[0]
    except DistNetworkError as error:
        raise TrainingError(_unreachable(rank, error)) from error
    return store


def forget_port(rank: int) -> None:
    """Removes the note about the port. Call it when all processes have joined the group, and so have read it."""
    if rank == 0:
        _port_note().unlink(missing_ok=True)


def _meet_on_free_port(rank: int, world_size: int, timeout: timedelta) -> Store:
    note = _port_note()
    if rank:
        port = _read_port(note, rank)
        os.environ["MASTER_PORT"] = str(port)
        return TCPStore(os.environ["MASTER_ADDR"], port, world_size, is_master=False, timeout=timeout)
    # Listening from here on: between a look for a free port and its use, another job could take it.
    listener = _listen(int(os.environ["MASTER_PORT"]))
    port = listener.getsockname()[1]
    os.environ["MASTER_PORT"] = str(port)
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    partial = note.with_suffix(".partial")
    partial.write_text(str(port))
    partial.replace(note)
    return store


def _listen(wished: int) -> socket.socket:
    """A listening socket on the port that was asked for, else on any free one."""
    for port in (wished, 0):
        try:
            return socket.create_server(("", port))
        except OSError:
            continue
    raise TrainingError(Problem("this host has no free TCP port for the processes to meet", advice="end other jobs"))


def _read_port(note: Path, rank: int) -> int:
    deadline = time.monotonic() + _SECONDS_FOR_PORT
    while not note.exists():
        if time.monotonic() > deadline:
            raise TrainingError(
                f"rank {rank} waited {_SECONDS_FOR_PORT:g} s for rank 0 to choose a port ({note} did not appear)"
            )
        time.sleep(0.02)
    return int(note.read_text())


def _port_note() -> Path:
    """The file named after the launcher process, with its start time where known: process numbers are used again."""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        started = "0"
    return Path(tempfile.gettempdir()) / f"megatron_ds_port_{os.getuid()}_{parent}_{started}"


def _unreachable(rank: int, error: DistNetworkError) -> Problem:
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    sources = (Source("MASTER_ADDR", address, "the launcher"), Source("MASTER_PORT", port, "the launcher"))
    reason = str(error).splitlines()[0]
    if rank == 0:
        return Problem(
            f"rank 0 can't listen on port {port}: {reason}",
            sources,
            "give another port: deepspeed --master_port N, torchrun --master-port N, or MASTER_PORT=N",
        )
    return Problem(
        f"rank {rank} can't reach rank 0 at {address}:{port}: {reason}",
        sources,
        "see that rank 0 runs, and that no firewall stands between the hosts",
    )
