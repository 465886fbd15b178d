"""Runs a function on several ranks, each time in a fresh world of processes.

On CPU the ranks are forked from one server process that has torch and DeepSpeed imported already: a world of four
ranks is there in a second. Nothing survives from one test to the next, DeepSpeed's globals included.

    def sum_of_ranks() -> float:
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total)
        return total.item()

    def test_all_reduce() -> None:
        assert run_ranks(4, sum_of_ranks) == [6.0] * 4

The function is found by its name in the ranks, so it stands at the top level of a module; so do the classes of its
arguments. Results are copied (tensors by value).
"""

from __future__ import annotations

import datetime
import faulthandler
import functools
import importlib.metadata
import multiprocessing as mp
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

Device = Literal["cpu", "cuda"]

ROOT = Path(__file__).resolve().parents[2]
SEED = 1234


class RankError(Exception):
    """A rank raised, died or hangs. The message has the rank and its traceback."""


class _Rank(NamedTuple):
    process: BaseProcess
    connection: Connection


class _Place(NamedTuple):
    """What a rank is told about its world."""

    rank: int
    world_size: int
    device: Device
    folder: str
    timeout: float
    dynamo: bool
    join: bool


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *,
    timeout: float = 120.0,
    device: Device = "cpu",
    dynamo: bool = False,
    join: bool = True,
    **kwargs: Any,
) -> list[Any]:
    """Calls `function(**kwargs)` on every rank of a new world and returns the results in the order of ranks.

    Args:
        world_size: number of processes.
        function: a function at the top level of an importable module. `torch.distributed` is ready when it starts.
        timeout: seconds that all ranks together may take, the start of the fork server not counted.
        device: ``cpu`` is gloo; ``cuda`` is NCCL with one GPU for each rank (new processes: some seconds to start).
        dynamo: leaves `torch.compile` at work, which is off otherwise on CPU.
        join: without it the function meets the other ranks itself, by the environment that a launcher would have set.
        kwargs: passed on to `function`.

    Raises:
        RankError: at the first rank that raises or dies, or when the time is over.
    """
    work = pickle.dumps((function, kwargs))
    context = _forkserver_context() if device == "cpu" else mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        ranks: list[_Rank] = []
        try:
            for rank in range(world_size):
                place = _Place(rank, world_size, device, folder, timeout, dynamo, join)
                ranks.append(_start(context, place, work))
            return _collect(ranks, Path(folder), timeout)
        finally:
            for process, connection in ranks:
                _kill(process)
                connection.close()


def _environment(device: Device) -> dict[str, str]:
    """What ranks must find in their environment when they import torch and DeepSpeed."""
    torch_version = importlib.metadata.version("torch")
    common = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": os.environ.get(
            "TORCH_EXTENSIONS_DIR", str(ROOT / ".cache" / "torch_extensions" / torch_version)
        ),
    }
    if device == "cuda":
        return common
    return common | {
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the processes that are started inside the block."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@functools.cache
def _forkserver_context() -> BaseContext:
    """Starts the server and waits until its imports are done, so that no test's time limit pays for them."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.dist.preload"])
    with _environ(_environment("cpu")):
        forkserver.ensure_running()
    process = context.Process(target=_warm_up)
    process.start()
    process.join()
    assert process.exitcode == 0, "tests.dist.preload can't be imported; its traceback is in the captured output"
    return context


def _warm_up() -> None:
    import tests.dist.preload  # noqa: F401 – the server swallows import errors; here they are seen


def _start(context: BaseContext, place: _Place, work: bytes) -> _Rank:
    ours, theirs = context.Pipe()
    # Not a daemon: those can't have children, and a data loader's workers are children.
    process = context.Process(target=_rank_main, args=(place, work, theirs), name=f"rank {place.rank}")  # type: ignore[attr-defined]
    with _environ(_environment(place.device)):
        process.start()
    theirs.close()
    return _Rank(process, ours)


def _collect(ranks: list[_Rank], folder: Path, timeout: float) -> list[Any]:
    """Waits for all results; raises at the first failure."""
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(results) < len(ranks):
        pending = {number: rank for number, rank in enumerate(ranks) if number not in results}
        watched = [end for rank in pending.values() for end in (rank.connection, rank.process.sentinel)]
        if not wait(watched, max(0.0, deadline - time.monotonic())):
            raise RankError(_describe_hang(pending, folder, timeout))
        for number, rank in pending.items():
            message = _receive(rank, number)
            if message is not None:
                results[number] = _unpack(message, number)
    return [results[number] for number in range(len(ranks))]


def _receive(rank: _Rank, number: int) -> bytes | None:
    """A rank's message, or None while there is none.

    Raises:
        RankError: the rank has ended without one.
    """
    ended = not rank.process.is_alive()  # asked first: a rank that has ended sends nothing later
    with suppress(EOFError, OSError):
        if rank.connection.poll():
            return rank.connection.recv_bytes()
        if not ended:
            return None
    rank.process.join(1)
    raise RankError(f"rank {number} died with exit code {rank.process.exitcode}")


def _unpack(message: bytes, number: int) -> Any:
    succeeded, value = pickle.loads(message)
    if not succeeded:
        raise RankError(f"rank {number} raised:\n{value}")
    return value


def _describe_hang(pending: Mapping[int, _Rank], folder: Path, timeout: float) -> str:
    """Has each pending rank write its stack down, and puts the stacks into one message."""
    for rank in pending.values():
        with suppress(ProcessLookupError):
            os.kill(rank.process.pid or 0, signal.SIGUSR1)
    time.sleep(0.5)
    stacks = [f"rank {number}:\n{_stack_file(folder, number).read_text()}" for number in pending]
    return "\n".join([f"no result within {timeout:g} s from ranks {sorted(pending)}", *stacks])


def _stack_file(folder: str | Path, rank: int) -> Path:
    file = Path(folder) / f"stack_{rank}.txt"
    file.touch()
    return file


def _kill(process: BaseProcess) -> None:
    """Ends a rank together with the processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # fails before the rank has its own group
    process.kill()
    process.join()


# From here on: what runs inside a rank.


def _rank_main(place: _Place, work: bytes, connection: Connection) -> None:
    os.setpgid(0, 0)
    stacks = _stack_file(place.folder, place.rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    watchdog = threading.Thread(target=_exit_with_parent, daemon=True)
    watchdog.start()
    try:
        _set_environment(place)
        if place.join:
            _join_world(place)
        function, kwargs = pickle.loads(work)
        message = pickle.dumps((True, function(**kwargs)))
    except BaseException:
        message = pickle.dumps((False, traceback.format_exc()))
    connection.send_bytes(message)
    # Stays until the parent ends all ranks: leaving now would break connections that other ranks still use, and
    # their errors would hide the first one.
    watchdog.join()


def _exit_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _set_environment(place: _Place) -> None:
    # As in a process of a user's: a rank takes on the fork server's way, and the first worker of its data loader would
    # start a server of its own.
    mp.set_start_method(None, force=True)
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.world_size),
        LOCAL_RANK=str(place.rank),
        LOCAL_SIZE=str(place.world_size),
        LOCAL_WORLD_SIZE=str(place.world_size),
        CROSS_RANK="0",
        CROSS_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
    if place.dynamo:
        os.environ.pop("TORCHDYNAMO_DISABLE", None)  # torch reads it whenever something is compiled


def _join_world(place: _Place) -> None:
    import deepspeed  # pytest's process stays without torch until a test needs it
    import torch

    import tests.dist.preload  # noqa: F401 – for ranks that were not forked from the server

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if place.device == "cuda":
        torch.cuda.set_device(place.rank)
    backend = "gloo" if place.device == "cpu" else "nccl"
    # Longer than the parent waits: its report names all ranks that hang, with their stacks.
    timeout = datetime.timedelta(seconds=place.timeout + 60)
    # First, and without a device, as `megatron_ds.engine.distributed` does.
    torch.distributed.init_process_group(
        backend,
        rank=place.rank,
        world_size=place.world_size,
        init_method=f"file://{place.folder}/store",
        timeout=timeout,
    )
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False, timeout=timeout)
