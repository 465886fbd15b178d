from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.dist.pool import ROOT

SCRIPTS = sorted(path.name for path in (Path(ROOT) / "scripts").glob("*.sh"))

# A Python that prints what it would be started with, and says that there are `$FAKE_GPUS` GPUs.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
    "-c import torch"*) echo "$FAKE_GPUS" ;;
    "-m deepspeed.launcher.runner") shift 2; printf '<%s>' "$@" "$DS_ACCELERATOR"; echo ;;
esac
"""


def run_script(tmp_path: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a launcher whose environment is ready and whose Python is `FAKE_PYTHON`."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path), "FAKE_GPUS": "0", **environment}
    script = [str(Path(ROOT) / "scripts" / name), *arguments]
    return subprocess.run(["bash", *script], env=environment, capture_output=True, text=True, timeout=60, check=False)


def started_with(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The arguments of DeepSpeed's launcher, and DS_ACCELERATOR as the last one."""
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1][1:-1].split("><")


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_short_and_has_no_syntax_error(name):
    path = Path(ROOT) / "scripts" / name
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert name == "lib.sh" or len(path.read_text().splitlines()) <= 40


@pytest.mark.parametrize(("gpus", "processes"), [("0", "1"), ("1", "1"), ("8", "8")])
def test_pretrain_gpt_starts_one_process_per_gpu_and_passes_arguments_on(tmp_path, gpus, processes):
    words = started_with(run_script(tmp_path, "pretrain_gpt.sh", "--save", "a folder", FAKE_GPUS=gpus))
    assert words[:3] == ["--quiet", "--num_gpus", processes]
    assert words[-3:] == ["--save", "a folder", "cpu" if gpus == "0" else ""]


def test_pretrain_gpt_takes_the_first_of_the_visible_gpus(tmp_path):
    result = run_script(tmp_path, "pretrain_gpt.sh", FAKE_GPUS="3", PROCESSES="2", CUDA_VISIBLE_DEVICES="4,5,7")
    assert started_with(result)[1:3] == ["--include", "localhost:4,5"]


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({"TP": "2", "PP": "2", "FAKE_GPUS": "8"}, "8"),
        ({"TP": "2", "PP": "2", "FAKE_GPUS": "8", "DP": "1"}, "4"),
        ({"TP": "2", "PP": "2", "FAKE_GPUS": "0"}, "4"),
        ({"FAKE_GPUS": "3"}, "3"),
    ],
)
def test_pretrain_gpt_3d_starts_tp_x_pp_x_dp_processes(tmp_path, environment, processes):
    words = started_with(run_script(tmp_path, "pretrain_gpt_3d.sh", "--bf16", **environment))
    assert words[1:3] == ["--num_gpus", processes]
    for flag, name in (("--tensor-model-parallel-size", "TP"), ("--pipeline-model-parallel-size", "PP")):
        assert words[words.index(flag) + 1] == environment.get(name, "1")
    assert words[-2] == "--bf16"


def test_pretrain_gpt_3d_refuses_a_hostfile_that_is_not_there(tmp_path):
    result = run_script(tmp_path, "pretrain_gpt_3d.sh", HOSTFILE="nowhere")
    assert result.returncode == 2
    assert "HOSTFILE=nowhere can't be read" in result.stderr


def test_pretrain_gpt_3d_passes_a_hostfile_on(tmp_path):
    (tmp_path / "hosts").write_text("one slots=2\n")
    words = started_with(run_script(tmp_path, "pretrain_gpt_3d.sh", HOSTFILE=str(tmp_path / "hosts")))
    assert words[:2] == ["--hostfile", str(tmp_path / "hosts")]
