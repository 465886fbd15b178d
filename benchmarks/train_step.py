"""Our training step beside those of the peers that are installed: same shapes, same machine. Prints JSON lines.

    python -m benchmarks.train_step --smoke     # all contenders at toy size: fits a CPU
    python -m benchmarks.train_step --preset sc21_1p7b --micro-batch-size 16 --num-micro-batches 2
    python -m benchmarks.train_step --preset sc21_3p6b --layouts dp2z1,tp2sp,dp2z3,pp2m8 --micro-batch-size 8
    python -m benchmarks.train_step --preset gpt2_1p3b --seq-length 8192 --micro-batch-size 2

Contenders: `ours`, built as a run builds it; `plain`, compiled PyTorch alone; `plain_deepspeed`, the same model under
ZeRO; `hf_deepspeed`, transformers under ZeRO; `megatron_core`. Each runs in processes of its own, one after the other,
in bf16 on GPUs and fp32 on CPU, with fp32 masters and accumulation, clipping and no dropout, on the same random tokens.
A contender that is not installed, has no such layout or fails gives a line that says so. `matmul_bound` is what matrix
products of these shapes reach alone. A step's time is the median after the warm-up.

`startup_seconds` is from the command until the model is ready, `compile_seconds` how much longer the first step took
than the median.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.workload import RESULT, TOYS, Layout, Workload

ROOT = Path(__file__).resolve().parent.parent
BOUND = "matmul_bound"


def main() -> int:
    arguments = _parser().parse_args()
    failed = 0
    for workload in workloads(arguments):
        line = measure(workload, arguments.timeout)
        failed += "error" in line
        print(json.dumps(line), flush=True)
    return int(failed > 0)


def workloads(arguments: argparse.Namespace) -> Iterator[Workload]:
    """What is measured, in turn: for each layout the bound, then each contender."""
    for layout in arguments.layouts:
        base = Workload(
            contender=BOUND,
            preset=arguments.preset,
            layout=layout,
            micro_batch_size=arguments.micro_batch_size,
            micro_batches=arguments.num_micro_batches,
            seq_length=arguments.seq_length,
            steps=arguments.steps,
            warmup=arguments.warmup,
            compiled=arguments.compile,
            same_weights=arguments.same_weights,
        )
        if not arguments.no_bound:
            yield base
        for name in arguments.contenders:
            options = tuple(arguments.our_options.split()) if name == "ours" else ()
            yield replace(base, contender=name, options=options)


def measure(workload: Workload, timeout: float) -> dict[str, object]:
    """The line of one contender: its figures, or why there are none."""
    asked = {**asdict(workload), "num_micro_batches": workload.num_micro_batches}
    del asked["micro_batches"]  # what the layout says counts
    if workload.contender != BOUND:
        reason = CONTENDERS[workload.contender].reason_to_skip(workload)
        if reason:
            return {**asked, "skipped": reason}
    return {**asked, **_run(workload, timeout)}


def _run(workload: Workload, timeout: float) -> dict[str, object]:
    """Starts the processes of one contender and waits for their end."""
    process = subprocess.Popen(
        _command(workload),
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {timeout:g} seconds"}
    finally:
        _end(process)
    # Other processes' words may stand before it on its line.
    results = [line[line.index(RESULT) + len(RESULT) :] for line in output.splitlines() if RESULT in line]
    if results:
        found: dict[str, object] = json.loads(results[0])
        return found
    return {"error": output[-2000:], "exit_code": process.returncode}


def _end(process: subprocess.Popen[str]) -> None:
    """Ends all processes of a contender, those that a launcher started included."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _command(workload: Workload) -> list[str]:
    words = [workload.to_json(), str(time.time())]
    if workload.contender == BOUND:
        return [sys.executable, "-m", "benchmarks.peers.bound", *words]
    worker = ["-m", "benchmarks.peers.worker", *words]
    processes = workload.cut.world_size
    if processes == 1:
        return [sys.executable, *worker]
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(port)]
    return [sys.executable, *launcher, *worker]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # Multicast between GPUs has put shared hosts out of service.
    return (
        {"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false"}
        | os.environ
        | {"PYTHONPATH": path}
    )


def _layouts(text: str) -> list[str]:
    layouts = text.split(",")
    try:
        for layout in layouts:
            Layout.parse(layout)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return layouts


def _contenders(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CONTENDERS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(CONTENDERS)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="sc21_1p7b", help=f"a model of configs/models, or one of {', '.join(TOYS)}")
    parser.add_argument("--seq-length", type=int, help="instead of the preset's")
    parser.add_argument("--layouts", type=_layouts, default=["dp1z1"], help="for instance dp2z1,tp2sp,dp2z3,pp2m8")
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--num-micro-batches", type=int, default=2, help="where a layout has no mN")
    parser.add_argument("--contenders", type=_contenders, default=list(CONTENDERS), help=",".join(CONTENDERS))
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them, 1 or more")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="peers are compiled")
    parser.add_argument("--our-options", default="", help="further flags of ours, in one word")
    parser.add_argument("--same-weights", action="store_true", help="plain peers begin with our weights")
    parser.add_argument("--no-bound", action="store_true", help="don't measure matrix products")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for each contender")
    parser.add_argument("--smoke", action=_Smoke, nargs=0, help="toy sizes; options after it count")
    return parser


class _Smoke(argparse.Action):
    """Sets what fits a CPU."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, *_: object) -> None:
        for name, value in {
            "preset": "toy",
            "micro_batch_size": 2,
            "num_micro_batches": 3,
            "steps": 2,
            "warmup": 1,
            "compile": False,
            "same_weights": True,
            "timeout": 120,
        }.items():
            setattr(namespace, name, value)


if __name__ == "__main__":
    sys.exit(main())
