from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.dist.pool import ROOT

SCRIPTS = sorted(str(path.relative_to(ROOT / "scripts")) for path in (ROOT / "scripts").rglob("*.sh"))

# A Python that prints what it would be started with, and says that there are `$FAKE_GPUS` GPUs.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
    "-c import torch"*) echo "$FAKE_GPUS" ;;
    "-m "* | *"/pretrain_"*) printf '<%s>' "$@" "$DS_ACCELERATOR"; echo
        [ -z "$SLURM_JOB_ID" ] || echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT" ;;
esac
"""

# Tasks 14 and 15 of a Slurm job on two machines.
FAKE_SRUN = """#!/bin/sh
export SLURM_NTASKS=16 SLURM_STEP_TASKS_PER_NODE='8(x2)'
for task in 6 7; do SLURM_PROCID=$((8 + task)) SLURM_LOCALID=$task "$@"; done
"""


def write_command(folder: Path, name: str, text: str) -> None:
    """Puts an executable into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def run_script(
    tmp_path: Path, name: str | Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a launcher whose environment is ready and whose Python is `FAKE_PYTHON`."""
    write_command(tmp_path / "bin", "python", FAKE_PYTHON)
    environment = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path), "FAKE_GPUS": "0", **environment}
    script = [str(Path(ROOT) / "scripts" / name), *arguments]
    return subprocess.run(["bash", *script], env=environment, capture_output=True, text=True, timeout=60, check=False)


def started_with(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The arguments of Python, and DS_ACCELERATOR as the last one."""
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1][1:-1].split("><")


def option(words: list[str], flag: str) -> str:
    """The value of a flag; where it stands twice, the one that counts."""
    return words[len(words) - words[::-1].index(flag)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_short_and_has_no_syntax_error(name):
    path = Path(ROOT) / "scripts" / name
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert name in ("lib.sh", "smoke/job.sh") or len(path.read_text().splitlines()) <= 40


def test_coverage_table_of_the_readme_has_every_job_with_its_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|") and "SMOKE=1 bash" in line]
    jobs = {Path(name).stem for name in SCRIPTS} - {"lib", "job", "quickstart", "test"}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == jobs
    commands = {name for row in rows for name in re.findall(r"(\w+)\.sh", row.split("|")[4])}
    assert commands == jobs


@pytest.mark.parametrize("model", ["gpt", "bert"])
@pytest.mark.parametrize("gpus", ["0", "8"])
def test_pretrain_starts_one_process_and_passes_arguments_on(tmp_path, model, gpus):
    words = started_with(run_script(tmp_path, f"pretrain_{model}.sh", "--save", "a folder", FAKE_GPUS=gpus))
    assert words[0] == f"{ROOT}/pretrain_{model}.py"
    assert words[-3:] == ["--save", "a folder", "cpu" if gpus == "0" else ""]


@pytest.mark.parametrize("model", ["gpt", "bert"])
@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({"FAKE_GPUS": "0"}, "1"),
        ({"FAKE_GPUS": "8"}, "8"),
        ({"FAKE_GPUS": "8", "GPUS_PER_NODE": "2"}, "2"),
    ],
)
def test_pretrain_distributed_starts_a_process_for_each_gpu(tmp_path, model, environment, processes):
    words = started_with(run_script(tmp_path, f"pretrain_{model}_distributed.sh", "--bf16", **environment))
    assert words[:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    assert words[5] == f"{ROOT}/pretrain_{model}.py"
    assert words[-2] == "--bf16"


@pytest.mark.parametrize("model", ["gpt", "bert"])
@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({"TP": "4", "PP": "1", "FAKE_GPUS": "8"}, "8"),
        ({"FAKE_GPUS": "8", "GPUS_PER_NODE": "4"}, "4"),
        ({"FAKE_GPUS": "0"}, "4"),
        ({"PP": "3", "FAKE_GPUS": "0"}, "6"),
    ],
)
def test_pretrain_with_mp_cuts_the_model_as_told(tmp_path, model, environment, processes):
    script = f"pretrain_{model}_distributed_with_mp.sh"
    words = started_with(run_script(tmp_path, script, "--bf16", **environment))
    assert option(words, "--nproc-per-node") == processes
    for flag, name in (("--tensor-model-parallel-size", "TP"), ("--pipeline-model-parallel-size", "PP")):
        assert option(words, flag) == environment.get(name, "2")
    assert words[-2] == "--bf16"


def test_pretrain_on_several_machines_meets_at_the_first_one(tmp_path):
    machines = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "first", "FAKE_GPUS": "8"}
    words = started_with(run_script(tmp_path, "pretrain_gpt_distributed.sh", **machines))
    places = {"--nnodes": "2", "--node-rank": "1", "--nproc-per-node": "8", "--master-addr": "first"}
    assert {flag: option(words, flag) for flag in places} == places
    assert option(words, "--master-port") == "6000"


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR"])
def test_pretrain_on_several_machines_without_a_place_is_refused(tmp_path, missing):
    machines = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "first"}
    del machines[missing]
    result = run_script(tmp_path, "pretrain_gpt_distributed.sh", **machines)
    assert result.returncode != 0
    assert f"{missing}: with NNODES, give" in result.stderr


def test_pretrain_refuses_a_hostfile_that_is_not_there(tmp_path):
    result = run_script(tmp_path, "pretrain_gpt_distributed_with_mp.sh", HOSTFILE="nowhere")
    assert result.returncode == 2
    assert "HOSTFILE=nowhere can't be read" in result.stderr


def test_pretrain_passes_a_hostfile_on(tmp_path):
    (tmp_path / "hosts").write_text("one slots=2\n")
    words = started_with(run_script(tmp_path, "pretrain_gpt_distributed.sh", HOSTFILE=str(tmp_path / "hosts")))
    assert words[:4] == ["-m", "deepspeed.launcher.runner", "--hostfile", str(tmp_path / "hosts")]


def test_pretrain_gpt3_175b_tells_each_task_of_a_slurm_job_its_place(tmp_path):
    write_command(tmp_path / "slurm", "srun", FAKE_SRUN)
    write_command(tmp_path / "slurm", "scontrol", "#!/bin/sh\necho node-7; echo node-8\n")
    copy = shutil.copy(Path(ROOT) / "scripts/pretrain_gpt3_175B.sh", tmp_path / "slurm_script")
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node-[7-8]", "SLURM_SUBMIT_DIR": str(ROOT)}
    path = f"{tmp_path}/slurm:/usr/bin:/bin"
    result = run_script(tmp_path, copy, "--save", "a folder", PATH=path, FAKE_GPUS="8", **job)
    assert result.returncode == 0, result.stderr
    *_, started, place, started_last, place_last = result.stdout.splitlines()
    words = started[1:-1].split("><")
    assert words == [f"{ROOT}/pretrain_gpt.py", "--deepspeed_config", "gpt3_175b", "--save", "a folder", ""]
    assert started_last == started
    assert (place, place_last) == ("14 6 16 8 node-7 6000", "15 7 16 8 node-7 6000")


def test_pretrain_gpt3_175b_outside_of_a_slurm_job_is_refused(tmp_path):
    result = run_script(tmp_path, "pretrain_gpt3_175B.sh")
    assert result.returncode == 2
    assert "sbatch scripts/pretrain_gpt3_175B.sh" in result.stderr


@pytest.mark.parametrize(
    ("model", "options"),
    [("gpt", {"--append-eod", "GPT2BPETokenizer"}), ("bert", {"--split-sentences", "BertWordPieceLowerCase"})],
)
def test_preprocess_data_gives_the_options_that_a_model_needs(tmp_path, model, options):
    words = started_with(run_script(tmp_path, "preprocess_data.sh", "--input", "a b.jsonl", MODEL=model))
    assert words[:3] == ["-m", "megatron_ds", "preprocess"]
    assert options <= set(words)
    assert option(words, "--input") == "a b.jsonl"


def test_preprocess_data_refuses_another_model(tmp_path):
    result = run_script(tmp_path, "preprocess_data.sh", MODEL="t5")
    assert result.returncode == 2
    assert "MODEL=t5: give gpt or bert" in result.stderr
