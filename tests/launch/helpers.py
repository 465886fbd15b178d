"""A tiny run, its data, and starting it the ways that users do."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.training.metrics import read_metrics
from tests.dist.pool import ROOT, run_ranks

VOCAB_SIZE = 64
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
PRETRAIN = str(ROOT / "pretrain_gpt.py")

# What launchers of an outer world may have left behind.
_RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "DS_ACCELERATOR"),
)


def write_corpus(
    prefix: Path, num_documents: int = 40, document_length: int = 50, last_token: int | None = None
) -> str:
    """Token files of documents in which each token follows from the one before; returns their prefix."""
    starts = np.random.default_rng(0).integers(0, VOCAB_SIZE, num_documents)
    with IndexedDatasetBuilder(str(prefix), np.dtype(np.uint16)) as builder:
        for start in starts:
            document = (start + 3 * np.arange(document_length)) % VOCAB_SIZE
            builder.add_document(document if last_token is None else np.append(document, last_token))
    return str(prefix)


def tiny_run(data_path: str, **changes: str | None) -> list[str]:
    """The flags of a run of three steps and one evaluation. None takes a flag out; others are changed or added."""
    flags: dict[str, str | None] = {
        "num-layers": "2",
        "hidden-size": "32",
        "num-attention-heads": "4",
        "seq-length": "16",
        "micro-batch-size": "1",
        "global-batch-size": "4",
        "train-iters": "3",
        "lr": "1e-3",
        "lr-decay-style": "constant",
        "hidden-dropout": "0",
        "attention-dropout": "0",
        "data-path": data_path,
        "split": "80,20,0",
        "vocab-size": str(VOCAB_SIZE),
        "eval-iters": "1",
        "log-interval": "1",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return [word for name, value in flags.items() if value is not None for word in (f"--{name}", value)]


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    exit_code: int
    output: str  # of all its processes, stdout and stderr


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment on CPU, as a terminal outside of any launcher has it."""
    kept = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    return kept | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"} | more


def launch(command: Sequence[str], folder: Path, *, timeout: float = 240, **environment: str) -> Finished:
    """Runs a command in `folder` to its end."""
    finished = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Finished(finished.returncode, finished.stdout)


def fork(processes: int, *words: str, folder: Path) -> Finished:
    """Runs a script to its end in processes that have torch and DeepSpeed imported already.

    A launcher costs some ten seconds more; what it adds is in `test_launchers` and `test_failures`.

    Args:
        processes: their number; they meet as those of DeepSpeed's launcher do.
        words: the script and its arguments.
        folder: where it runs.
    """
    with tempfile.TemporaryDirectory(prefix="fork-") as scratch:
        output = Path(scratch) / "output.txt"
        arguments: dict[str, Any] = {"processes": processes, "words": words, "folder": folder, "output": output}
        (codes,) = run_ranks(1, _fork_and_wait, timeout=240, join=False, **arguments)
        text = output.read_text()
    assert len(set(codes)) == 1, f"exit codes {codes}\n{text}"
    return Finished(codes[0], text)


def _fork_and_wait(processes: int, words: Sequence[str], folder: Path, output: Path) -> list[int]:
    """Stands for the launcher: its children are the ranks. Returns their exit codes."""
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
            os.environ.update(place | sizes)
            _run_script(words)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _run_script(words: Sequence[str]) -> NoReturn:
    """Ends this process with a script."""
    code: Any = 1
    sys.argv = list(words)
    try:
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def deepspeed(processes: int, *words: str) -> list[str]:
    """The command line of DeepSpeed's launcher; `words` are the script and its arguments, after more options."""
    return [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(processes), *words]


def torchrun(processes: int, *words: str) -> list[str]:
    """The command line of torchrun, which looks for a free port."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *words]


def losses(save: Path) -> list[tuple[int, str, float]]:
    """Step, kind and loss of each line of a run's metrics.jsonl."""
    return [
        (line["step"], line.get("split", "train"), line["lm_loss"] if "lm_loss" in line else line["loss"])
        for line in read_metrics(save / "metrics.jsonl")
    ]
