"""Scripts under SMOKE=1, as a user starts them, and what their runs leave behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatron_ds.cli.checkpoint_tools import main as checkpoint_tool
from megatron_ds.training.metrics import read_metrics
from tests.dist.pool import ROOT
from tests.launch.helpers import launch


def smoke(folder: Path, script: str, *arguments: str, **environment: str) -> str:
    """Runs a script with `folder` as SMOKE_DIR; returns what it printed."""
    # With the Python of this test: a script installs into an active environment that lacks something.
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "VIRTUAL_ENV": ""}
    command = ["bash", str(ROOT / "scripts" / script), *arguments]
    finished = launch(command, folder, SMOKE="1", SMOKE_DIR=str(folder), **python, **environment)
    assert finished.exit_code == 0, finished.output
    return finished.output


def layout(run: Path) -> dict[str, Any]:
    """TP, PP, ZeRO stage and recomputation of a run."""
    config = json.loads((run / "run_config.json").read_text())
    parallel = config["parallel"]
    return {
        "TP": parallel["tensor_model_parallel_size"],
        "PP": parallel["pipeline_model_parallel_size"],
        "ZeRO": parallel["zero_stage"],
        "recompute": config["training"]["checkpoint_activations"],
    }


def losses(run: Path) -> list[float]:
    """All losses of a run, of training and of validation, in the order of metrics.jsonl."""
    lines = read_metrics(run / "metrics.jsonl")
    return [line[name] for line in lines for name in ("loss", "lm_loss", "sop_loss") if name in line]


def assert_trained_as(run: Path, reference: Path) -> None:
    """Another layout, the same numbers."""
    expected = losses(reference)
    assert len(expected) >= 3
    assert losses(run) == pytest.approx(expected, rel=1e-5)


def assert_merged_is(merged: Path, reference: Path) -> None:
    """A merged file has the weights of the run `reference` that was not cut."""
    whole = reference.with_suffix(".safetensors")
    checkpoint_tool(["merge", "--input", str(reference), "--output", str(whole)])
    found, expected = load_file(merged), load_file(whole)
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    # Over all weights: a bias of keys has no gradient but rounding, which Adam enlarges to whole steps.
    names = sorted(expected)
    found_vector, vector = (torch.cat([tensors[name].flatten() for name in names]) for tensors in (found, expected))
    assert (found_vector - vector).norm() <= 1e-5 * vector.norm()
