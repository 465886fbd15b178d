"""Seconds from the command to the first finished optimizer step on CPU, beside a bare DeepSpeed script.

    python benchmarks/startup.py [--processes 1 2 4] [--repeats 5]

Both are started by DeepSpeed's launcher, in turns, after one run of each that is not counted and fills the caches of
files. Prints a JSON line for each script and number of processes, with medians: `seconds` by the clock until the first
step is reported, and `cpu_seconds`, processor time of all processes until their end, which says more where other jobs
share the cores. A last line for each number of processes has the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder

ROOT = Path(__file__).resolve().parent.parent

# The layouts that scripts/quickstart.sh takes: processes -> TP, PP.
LAYOUTS = {1: (1, 1), 2: (2, 1), 4: (2, 2)}


@dataclass(frozen=True)
class Start:
    """One start.

    Attributes:
        seconds: until the first optimizer step was reported.
        cpu_seconds: processor time of all processes, until their end.
    """

    seconds: float
    cpu_seconds: float


def main() -> None:
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = _corpus(Path(folder))
        for processes in arguments.processes:
            _compare(processes, arguments.repeats, prefix)


def _compare(processes: int, repeats: int, prefix: str) -> None:
    commands = {
        "bare": [str(ROOT / "benchmarks" / "startup_bare.py")],
        "pretrain_gpt": _pretrain(processes, prefix),
    }
    starts: dict[str, list[Start]] = {name: [] for name in commands}
    for repeat in range(repeats + 1):
        for name, command in commands.items():
            start = _measure([*_launcher(processes), *command])
            if repeat:
                starts[name].append(start)
    medians = {}
    for name, measured in starts.items():
        medians[name] = Start(
            statistics.median(start.seconds for start in measured),
            statistics.median(start.cpu_seconds for start in measured),
        )
        record = {"script": name, "processes": processes, "repeats": repeats, **_rounded(medians[name])}
        print(json.dumps(record), flush=True)
    ratios = Start(
        medians["pretrain_gpt"].seconds / medians["bare"].seconds,
        medians["pretrain_gpt"].cpu_seconds / medians["bare"].cpu_seconds,
    )
    print(json.dumps({"ratio": "pretrain_gpt / bare", "processes": processes, **_rounded(ratios)}), flush=True)


def _measure(command: list[str]) -> Start:
    """Starts a command and waits for its end.

    Raises:
        SystemExit: it failed; with its output.
    """
    used = _cpu_seconds()
    started = time.perf_counter()
    seconds, lines = None, []
    with subprocess.Popen(
        command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if seconds is None and line.startswith("step 1"):
                seconds = time.perf_counter() - started
    if process.returncode or seconds is None:
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(lines)}")
    return Start(seconds, _cpu_seconds() - used)


def _cpu_seconds() -> float:
    """Processor time of all children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _rounded(start: Start) -> dict[str, float]:
    return {"seconds": round(start.seconds, 2), "cpu_seconds": round(start.cpu_seconds, 2)}


def _environment() -> dict[str, str]:
    return os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}


def _launcher(processes: int) -> list[str]:
    with socket.socket() as probe:  # the bare script dies where another job has the launcher's own port
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    options = ["--num_gpus", str(processes), "--master_port", str(port)]
    return [sys.executable, "-m", "deepspeed.launcher.runner", *options]


def _pretrain(processes: int, prefix: str) -> list[str]:
    tp_size, pp_size = LAYOUTS[processes]
    flags = {
        "num-layers": 2,
        "hidden-size": 32,
        "num-attention-heads": 4,
        "seq-length": 16,
        "micro-batch-size": 1,
        "global-batch-size": 4,
        "train-iters": 1,
        "lr": 1e-3,
        "eval-iters": 0,
        "log-interval": 1,
        "vocab-size": 64,
        "data-path": prefix,
        "split": "100,0,0",
        "tensor-model-parallel-size": tp_size,
        "pipeline-model-parallel-size": pp_size,
    }
    return [
        str(ROOT / "pretrain_gpt.py"),
        *(word for name, value in flags.items() for word in (f"--{name}", str(value))),
    ]


def _corpus(folder: Path) -> str:
    prefix = str(folder / "corpus_text_document")
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        builder.add_document(np.arange(1000) % 64)
    return prefix


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--repeats", type=int, default=5)
    return parser


if __name__ == "__main__":
    main()
