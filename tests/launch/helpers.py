"""A tiny run, its data, and starting it the ways that users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.training.metrics import read_metrics
from tests.dist.pool import ROOT

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
