"""Starting and ending the process group, alike under ``deepspeed``, ``torchrun`` and plain ``python``."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from megatron_ds.engine.failure import raise_if_peer_failed
from megatron_ds.engine.rendezvous import forget_port, meet

_SECONDS_BETWEEN_CHECKS = 2.0
# What a launcher would have set.
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def local_device() -> torch.device:
    """This rank's GPU, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@dataclass(frozen=True)
class Joined:
    """A process that has joined its group.

    Attributes:
        device: of this rank.
        store: where the processes met; for words that are passed without a collective.
    """

    device: torch.device
    store: Store


def start_distributed(timeout_minutes: float) -> Joined:
    """Joins the process group that the launcher's environment describes, and has DeepSpeed use it.

    Args:
        timeout_minutes: how long a collective may wait.

    Raises:
        TrainingError: the processes can't meet.
    """
    joined = start_processes(timeout_minutes)
    _join_deepspeed(dist.get_backend(), timedelta(minutes=timeout_minutes))
    return joined


def start_processes(timeout_minutes: float) -> Joined:
    """Joins the process group that the launcher's environment describes; alone when there is no launcher.

    Args:
        timeout_minutes: how long a collective may wait.

    Raises:
        TrainingError: the processes can't meet.
    """
    device = local_device()
    # DeepSpeed would guess, and warn, otherwise. It reads this when it is imported.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if device.type == "cuda" else "cpu")
    for name, value in _ALONE.items():
        os.environ.setdefault(name, value)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        _share_cores(world_size)
    timeout = timedelta(minutes=timeout_minutes)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = meet(rank, world_size, timeout)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        # No `device_id`: with it, NCCL puts the sends and receives between pipeline stages and all other operations
        # of the group into one queue, with a warning for each kind.
    )
    # Tells NCCL the device: a barrier that comes first would have to guess it from the rank's number.
    dist.all_reduce(torch.zeros(1, device=device))
    forget_port(rank)
    return Joined(device, store)


def wait_for_all(store: Store, name: str, *, check: Callable[[], None] = raise_if_peer_failed) -> None:
    """Waits until every process has called this, however long that takes.

    For work that a few processes do for all, such as an index of an hour: a collective would give up after its timeout.

    Args:
        store: where the processes met.
        name: of what is waited for; each is waited for once.
        check: called every few seconds; raises when waiting is of no use any more.
    """
    key, world_size = f"megatron_ds/waiting/{name}", dist.get_world_size()
    last_check = time.monotonic()
    store.add(key, 1)
    while store.add(key, 0) < world_size:
        time.sleep(0.05)
        if time.monotonic() - last_check > _SECONDS_BETWEEN_CHECKS:
            check()
            last_check = time.monotonic()


def _join_deepspeed(backend: str, timeout: timedelta) -> None:
    """Has DeepSpeed use the process group that there is."""
    import deepspeed
    import deepspeed.ops

    _hush(logging.getLogger("DeepSpeed"))
    # Without this, each start on a CPU compiles a shared-memory extension (40-90 s) that gloo does not need.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False, timeout=timeout)
    _import_muon_without_compiler()


def _import_muon_without_compiler() -> None:
    """Imports DeepSpeed's Muon optimizer, as DeepSpeed itself does under ZeRO, with `torch.compile` switched off.

    Its functions are compiled where they are defined. That alone would load all of torch.compile's backend in each
    process, one and a half seconds of processor time, for an optimizer that no run of ours uses.
    """
    switch = "TORCHDYNAMO_DISABLE"
    before = os.environ.get(switch)
    os.environ[switch] = "1"  # read whenever something is compiled, so that later uses are not concerned
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 - DeepSpeed finds it imported
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


def _hush(deepspeed_logger: logging.Logger) -> None:
    """Silences what DeepSpeed 0.19.8 prints on every rank and no user can act on."""
    deepspeed_logger.setLevel(logging.ERROR)
    # It calls collectives by names that newer PyTorch calls old, and from gradient hooks, where the tensors that it
    # reduces carry no graph of their own.
    warnings.filterwarnings("ignore", message=r".*`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r"barrier\(\): using the device under current context")
    warnings.filterwarnings("ignore", message=r"c10d::\w+: an autograd kernel was not registered", category=UserWarning)


def stop_distributed() -> None:
    """Leaves the process group in good order. After an error, processes just exit: peers may be gone."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _share_cores(world_size: int) -> None:
    """Gives each process of this host its share of the cores: DeepSpeed's launcher leaves that unset."""
    if "OMP_NUM_THREADS" not in os.environ:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", str(world_size))))
        torch.set_num_threads(max(1, _num_cores() // here))


def _num_cores() -> int:
    """Cores that this process may use, which in a container or under a scheduler are fewer than the host has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
