"""How processes refuse a bad run: one report, a code on every rank, and neither torch nor DeepSpeed imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dist.pool import ROOT
from tests.launch.helpers import PP, PRETRAIN, TP, clean_environment, deepspeed, launch, tiny_run, write_corpus

# Modules are listed on stderr as they are imported.
PYTHON = [sys.executable, "-X", "importtime"]


def _split(stderr: str) -> tuple[set[str], str]:
    """The top-level modules that were imported, and what else was printed."""
    lines = stderr.splitlines()
    imports = [line for line in lines if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports}
    return modules, "\n".join(line for line in lines if line not in imports)


def _start_ranks(argv: list[str], folder: Path, world_size: int) -> list[subprocess.Popen[str]]:
    """Starts processes as a scheduler without a launcher of ours or DeepSpeed's would."""
    ranks = []
    for rank in range(world_size):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        environment = clean_environment(**place, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
        command = [*PYTHON, PRETRAIN, f"--local_rank={rank}", *argv]
        ranks.append(
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    return ranks


def test_bad_config_on_four_ranks_is_reported_once_and_ends_all_before_torch(tmp_path: Path, corpus: str) -> None:
    run = tiny_run(corpus, hidden_size="30", load=str(tmp_path / "typo"))
    ranks = _start_ranks([*run, TP, "3", PP, "2", "--fp16"], tmp_path, world_size=4)
    reports = 0
    for number, rank in enumerate(ranks):
        stdout, stderr = rank.communicate(timeout=120)
        modules, text = _split(stderr)
        assert rank.returncode == 2, number
        assert stdout == ""
        assert "megatron_ds" in modules
        assert not {"torch", "deepspeed", "transformers"} & modules, number
        reports += text.count("ConfigError: 5 problems")
        assert (number == 0) == ("ConfigError: 5 problems" in text)
        # Without a launcher that ends it, a rank says in one line why it stops.
        assert (number > 0) == text.startswith(f"[rank {number}] stopped, ConfigError: 4 processes can't be shared out")
    assert reports == 1


def test_missing_tokenizer_and_data_are_reported_together_before_torch(tmp_path: Path) -> None:
    run = tiny_run(str(tmp_path / "nowhere"), vocab_size=None, tokenizer_type="GPT2BPETokenizer")
    run += ["--vocab-file", "none.json", "--merge-file", "none.txt"]
    finished = subprocess.run(
        [*PYTHON, PRETRAIN, *run], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    modules, text = _split(finished.stderr)
    assert finished.returncode == 2
    assert not {"torch", "deepspeed", "transformers"} & modules
    for words in ("none.json", "nowhere.bin"):
        assert words in text


def test_print_config_and_help_need_no_torch(tmp_path: Path, corpus: str) -> None:
    for argv, expected in (([*tiny_run(corpus), "--print-config"], "training.train_iters"), (["--help"], "--lr")):
        finished = subprocess.run(
            [*PYTHON, PRETRAIN, *argv],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in finished.stdout
        assert not {"torch", "deepspeed", "transformers"} & _split(finished.stderr)[0]


def test_print_config_of_a_run_with_problems_prints_the_options_and_the_problems(tmp_path: Path, corpus: str) -> None:
    runs = {
        "data file not found": tiny_run("nowhere"),
        "hidden_size 33": tiny_run(corpus, hidden_size="33"),
        "1 required option is missing: lr": tiny_run(corpus, lr=None),
    }
    for problem, argv in runs.items():
        finished = launch([sys.executable, PRETRAIN, *argv, "--print-config"], tmp_path)
        assert finished.exit_code == 2
        assert problem in finished.output
        assert "optimizer.min_lr" in finished.output
    noted = [*tiny_run(corpus), "--print-config", "--min-lr", "1e-4"]
    finished = launch([sys.executable, PRETRAIN, *noted], tmp_path)
    assert (finished.exit_code, finished.output.count("--min-lr has no effect")) == (0, 1)


def test_run_with_problems_says_what_it_would_have_noted(tmp_path: Path) -> None:
    run = [*tiny_run("nowhere"), "--min-lr", "1e-4"]
    finished = launch([sys.executable, PRETRAIN, *run], tmp_path)
    assert finished.exit_code == 2
    assert finished.output.count("data file not found") == 1
    assert finished.output.count("--min-lr has no effect with lr_decay_style constant") == 1
    assert "optimizer.min_lr" not in finished.output


@pytest.mark.parametrize("argv", [["--help"], ["--print-config"]], ids=["help", "config"])
def test_output_that_nobody_reads_ends_the_program_quietly(tmp_path: Path, corpus: str, argv: list[str]) -> None:
    unread, closed = os.pipe()
    os.close(unread)
    finished = subprocess.run(
        [sys.executable, PRETRAIN, *tiny_run(corpus), *argv],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=closed,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(closed)
    assert finished.stderr == ""
    # A program that prints dies of the closed pipe; a log line is no reason to.
    assert finished.returncode == (141 if argv == ["--help"] else 0)


def test_bad_run_under_deepspeed_is_reported_once_and_the_launcher_returns_the_code(tmp_path: Path) -> None:
    # A hostfile that DeepSpeed's launcher does not find is only a warning to it.
    short = write_corpus(tmp_path / "short_text_document", num_documents=4, document_length=3)
    run = [PRETRAIN, *tiny_run(short, zero_stage="2"), PP, "2"]
    finished = launch(deepspeed(4, "--hostfile", "missing_hosts", *run), tmp_path)
    assert finished.exit_code == 2, finished.output
    assert finished.output.count("ConfigError: 4 problems") == 1
    assert finished.output.count("three ways out") == 1
    assert finished.output.count("has 9 tokens") == 1
    assert f"the hostfile {tmp_path / 'missing_hosts'} does not exist" in finished.output
    assert "Traceback" not in finished.output


def test_hostfile_check_finds_the_launcher_among_the_ancestors(tmp_path: Path, corpus: str) -> None:
    # Stands for the launcher: its name and command line are what the check goes by.
    launcher = tmp_path / "deepspeed"
    launcher.write_text("import os, subprocess, sys\nsys.exit(subprocess.call(sys.argv[3:]))\n")
    run = [sys.executable, PRETRAIN, *tiny_run(corpus), "--print-config"]
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    for option, code in (("hosts", 0), ("gone", 2), (str(ROOT / "gone"), 2)):
        command = [sys.executable, str(launcher), "--hostfile", option, *run]
        finished = launch(command, tmp_path, CROSS_SIZE="1")
        assert finished.exit_code == code, finished.output
        assert (code == 2) == (f"the hostfile {tmp_path / option} does not exist" in finished.output)
