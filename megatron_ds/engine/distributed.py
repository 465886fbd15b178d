"""Starting and ending the process group, alike under ``deepspeed``, ``torchrun`` and plain ``python``."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from megatron_ds.errors import TrainingError


def local_device() -> torch.device:
    """This rank's GPU, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def start_distributed(timeout_minutes: float) -> torch.device:
    """Joins the process group that the launcher's environment describes; alone when there is no launcher.

    Args:
        timeout_minutes: how long a collective may wait.

    Returns:
        The device of this rank.
    """
    device = local_device()
    # DeepSpeed would guess, and warn, otherwise. It reads this when it is imported.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if device.type == "cuda" else "cpu")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["MASTER_PORT"] = str(_agree_on_port(rank, world_size))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        _share_cores(world_size)

    import deepspeed
    import deepspeed.ops

    _hush(logging.getLogger("DeepSpeed"))
    # Without this, each start on a CPU compiles a shared-memory extension (40-90 s) that gloo does not need.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend, timeout = ("nccl" if device.type == "cuda" else "gloo"), timedelta(minutes=timeout_minutes)
    # PyTorch's own start first, because it takes the device: NCCL would guess it from the rank's number.
    dist.init_process_group(
        backend,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False, timeout=timeout)
    if rank == 0:
        _port_note().unlink(missing_ok=True)  # every rank has connected, so every rank has read it
    return device


def _hush(deepspeed_logger: logging.Logger) -> None:
    """Silences what DeepSpeed 0.19.8 prints on every rank and no user can act on."""
    deepspeed_logger.setLevel(logging.ERROR)
    # It calls collectives by names that newer PyTorch calls old, and from gradient hooks, where the tensors that it
    # reduces carry no graph of their own.
    warnings.filterwarnings("ignore", message=r".*`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r"c10d::\w+: an autograd kernel was not registered", category=UserWarning)


def stop_distributed() -> None:
    """Leaves the process group in good order. After an error, processes just exit: peers may be gone."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _share_cores(world_size: int) -> None:
    """Gives each process of this host its share of the cores: launchers leave that unset on CPU."""
    if "OMP_NUM_THREADS" not in os.environ:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", str(world_size))))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // here))


def _agree_on_port(rank: int, world_size: int) -> int:
    """The port of the rendezvous: the launcher's own, or a free one where another job has taken that.

    Only a job on one host can change its mind: its ranks share a parent process, and so a small file through which
    rank 0 tells the others. Under torchrun the port is served by torchrun itself, and stays.
    """
    wished = int(os.environ.get("MASTER_PORT", "0"))
    one_host = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", str(world_size)))) == world_size
    if "TORCHELASTIC_RUN_ID" in os.environ or not one_host:
        return wished
    if world_size == 1:
        return _free_port(wished)
    note = _port_note()
    if rank == 0:
        port = _free_port(wished)
        partial = note.with_suffix(".partial")
        partial.write_text(str(port))
        partial.replace(note)
        return port
    deadline = time.monotonic() + 120
    while not note.exists():
        if time.monotonic() > deadline:
            raise TrainingError(f"rank {rank} waited 120 s for rank 0 to choose a port ({note} did not appear)")
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


def _free_port(wished: int) -> int:
    for port in (wished, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            number: int = probe.getsockname()[1]
            return number
    raise TrainingError("no free TCP port on this host for the rendezvous")
