"""Seconds of saving a GPT, and how long training stands still, beside plain writers of the same numbers.

    python -m benchmarks.checkpoint [--hidden-size 512] [--num-layers 8] [--repeats 5] [--folder DIR] [--device cuda]

For ZeRO-1 and ZeRO-3 on 1 and 2 processes (fp32 on the CPU by default), prints a JSON line for each way of writing,
with medians after one save that is not counted, of the slowest process:

- `save`: our checkpoint, hashed and on disk when the call returns;
- `async_save`: `stall_seconds` is what the call takes; then the same number of training steps is timed with
  (`steps_seconds_while_writing`) and without (`steps_seconds`) a checkpoint being written beside them; `stall_ratio` is
  the call's time over that of `save`;
- `torch.save`, `safetensors`: the same tensors by these alone, without hashes; with and without waiting for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.engine.distributed import local_device
from megatron_ds.models import gpt_layers, whole_model_specs
from megatron_ds.training.saving import CheckpointSaver
from tests.dist.pool import run_ranks

_STEPS = 2
Rows = dict[str, dict[str, float]]


class _Measured:
    """A run whose saves are timed."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.tiny = TinyRun(case)
        self.tiny.train_step(0)
        self._folder = folder
        self._number = 0
        self._specs = whole_model_specs(partial(gpt_layers, self.tiny.run.model), self.tiny.mpu.topology)

    def saver(self, *, in_background: bool) -> CheckpointSaver:
        """A saver that is not used up by its first checkpoint of a step."""
        run, tiny = self.tiny.run, self.tiny
        checkpoint = run.checkpoint.model_copy(update={"async_save": in_background})
        run = run.model_copy(update={"checkpoint": checkpoint})
        return CheckpointSaver(run, self._specs, tiny.engine, tiny.mpu, tiny.layers, None)

    def new_folder(self) -> Path:
        """An empty folder, in place of the one before."""
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self._folder / str(self._number), ignore_errors=True)
        self._number += 1
        dist.barrier()
        return self._folder / str(self._number)

    def save(self, saver: CheckpointSaver) -> float:
        """Seconds of a save, as training waits for it."""
        folder = self.new_folder()
        saver.saved_step = None
        return seconds_of(lambda: saver(folder))

    def tensors(self) -> dict[str, Tensor]:
        """This rank's part of the last checkpoint: every file's tensors, files dealt out to ranks by turns."""
        files = sorted((self._folder / str(self._number)).glob("*/*.pt"))[dist.get_rank() :: dist.get_world_size()]
        found: dict[str, Tensor] = {}
        for file in files:
            _collect(torch.load(file, weights_only=False), file.name, found)
        return found

    def steps(self) -> None:
        """Some training."""
        for step in range(1, 1 + _STEPS):
            float(self.tiny.train_step(step).loss)  # waits for the device


def _collect(value: Any, name: str, found: dict[str, Tensor]) -> None:
    if isinstance(value, Tensor) and value.numel():
        found[name] = value.detach().clone()
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(item, f"{name}/{key}", found)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _collect(item, f"{name}/{number}", found)


def seconds_of(action: Callable[[], object]) -> float:
    """How long the slowest rank takes; all begin together."""
    dist.barrier()
    start = time.perf_counter()
    action()
    seconds = torch.tensor(time.perf_counter() - start, device=local_device())
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def _median(measure: Callable[[], float], repeats: int) -> float:
    measure()
    return statistics.median(measure() for _ in range(repeats))


def _write_plainly(write: Callable[[str], None], path: Path, *, to_disk: bool) -> None:
    write(str(path))
    if to_disk:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    path.unlink()


def measure(case: Case, folder: Path, repeats: int) -> Rows:
    """All rows of one configuration; runs on each rank."""
    run = _Measured(case, folder)
    rows: Rows = {"save": {"seconds": _median(partial(run.save, run.saver(in_background=False)), repeats)}}
    tensors = run.tensors()
    size = sum(file.stat().st_size for file in folder.rglob("*.pt"))

    saver = run.saver(in_background=True)
    stalls, while_writing, steps = [], [], []
    for repeat in range(repeats + 1):
        stall = run.save(saver)
        busy = seconds_of(run.steps)
        saver.finish()
        idle = seconds_of(run.steps)
        if repeat:
            stalls.append(stall)
            while_writing.append(busy)
            steps.append(idle)
        else:
            rows["async_save"] = {"first_stall_seconds": stall}
    rows["async_save"] |= {
        "stall_seconds": statistics.median(stalls),
        "stall_ratio": statistics.median(stalls) / rows["save"]["seconds"],
        "steps_seconds_while_writing": statistics.median(while_writing),
        "steps_seconds": statistics.median(steps),
    }

    plain_file = run.new_folder().with_suffix(f".rank{dist.get_rank()}")
    writers: Mapping[str, Callable[[str], None]] = {
        "torch.save": lambda path: torch.save(tensors, path),
        "safetensors": lambda path: save_file(tensors, path),
    }
    for name, write in writers.items():
        for to_disk in (True, False):
            action = partial(_write_plainly, write, plain_file, to_disk=to_disk)
            seconds = _median(partial(seconds_of, action), repeats)
            rows[name if to_disk else f"{name}, page cache"] = {"seconds": seconds}
    for row in rows.values():
        if "seconds" in row:
            row["gb_per_second"] = size / 1e9 / row["seconds"]
    return {name: {"bytes": size, **row} for name, row in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--num-layers", type=int, default=8)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--zero", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where to write; a temporary folder by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU for each process, bf16")
    options = parser.parse_args()
    for zero in options.zero:
        for processes in options.processes:
            case = Case(
                dp=processes,
                zero=zero,
                precision="bf16" if options.device == "cuda" else "fp32",
                num_layers=options.num_layers,
                global_batch_size=2,
                more=("--hidden-size", str(options.hidden_size)),
            )
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                rows, *_ = run_ranks(
                    processes,
                    measure,
                    device=options.device,
                    case=case,
                    folder=Path(folder),
                    repeats=options.repeats,
                    timeout=1800,
                )
            for writer, row in rows.items():
                figures = {name: round(value, 4) for name, value in row.items()}
                print(json.dumps({"zero": zero, "processes": processes, "writer": writer, **figures}), flush=True)


if __name__ == "__main__":
    main()
