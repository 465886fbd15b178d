"""`megatron-ds evaluate` from its command line: what is refused before the start, and whole jobs with their files."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron_ds.cli import evaluate
from megatron_ds.cli.evaluate_options import parser
from megatron_ds.cli.evaluate_plan import Plan, plan_evaluation
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError, MegatronDsError
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.tasks.zeroshot import run
from megatron_ds.tasks.zeroshot.job import HarnessTask, TextTask
from tests.dist.pool import run_ranks
from tests.generation.checkpoints import random_checkpoint
from tests.generation.models import POSITIONS, SIZES
from tests.launch.helpers import launch

PASSAGES = ("the cat sat on the mat", "a dog ran to the cat", "one two")


def _model(**options: object) -> ModelConfig:
    return ModelConfig(**SIZES | {"vocab_size": 257} | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    random_checkpoint(folder / "run", _model())
    (folder / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PASSAGES))
    (folder / "wiki").write_text(" = Cats = \n \n The cat ( a pet ) , 1 @,@ 000 of them . \n")
    (folder / "empty").write_text("")
    return folder


def _plan(folder: Path, *words: str, world_size: int = 1) -> Plan:
    environ = {"WORLD_SIZE": str(world_size)}
    if world_size > 1:
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    words = tuple(str(folder / word[1:]) if word.startswith("@") else word for word in words)
    load = [] if "--load" in words else ["--load", str(folder / "run")]
    return plan_evaluation(parser().parse_args([*load, *words]), environ)


LAMBADA = ("--task", "LAMBADA", "--valid-data", "@lambada.jsonl")
WIKITEXT = ("--task", "WIKITEXT103", "--valid-data", "@wiki")

REFUSED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no such task": (
        ("--task", "SQUAD"),
        ("--task SQUAD is not one task that", "LAMBADA, WIKITEXT103", "RACE"),
    ),
    "misspelt task": (("--task", "SST2"), ("did you mean SST-2?",)),
    "task in another case": (("--task", "cola"), ("did you mean CoLA?",)),
    "task that only trains": (("--task", "SFT"), ("finetune.py --task SFT reports the loss",)),
    "two tasks": (("--task", "LAMBADA", "WIKITEXT103"), ("is not one task",)),
    "harness and own": (("--task", "lm_eval:x", "LAMBADA"), ("is not one task",)),
    "no file": (("--task", "LAMBADA"), ("--task LAMBADA needs a file", "--valid-data FILE")),
    "two files": ((*LAMBADA, "@wiki"), ("--task LAMBADA takes one file, and 2 are given",)),
    "GPT for a task of BERT": (("--task", "MNLI", "--valid-data", "@wiki"), ("is not a model of MNLI", "output_head")),
    "file that is not there": ((*LAMBADA[:3], "/nowhere"), ("/nowhere can't be read",)),
    "empty file": ((*LAMBADA[:3], "@empty"), ("empty is empty",)),
    "file of another task": ((*LAMBADA[:3], "@wiki"), ("line 1 is no JSON",)),
    "option of another task": ((*WIKITEXT, "--strict-lambada"), ("--strict-lambada means nothing for",)),
    "windows that leave gaps": (
        (*WIKITEXT, "--overlapping-eval", str(POSITIONS + 1)),
        (f"--overlapping-eval {POSITIONS + 1} is more than the {POSITIONS} tokens",),
    ),
    "longer than the positions": (
        (*WIKITEXT, "--seq-length", str(POSITIONS + 1)),
        (f"--seq-length {POSITIONS + 1} is more than the {POSITIONS} positions",),
    ),
    "harness without a name": (("--task", "lm_eval:"), ("names no task",)),
    "no folder of tasks": (("--task", "lm_eval:x", "--include-path", "/nowhere"), ("--include-path /nowhere is no",)),
    "other tokenizer": (
        (*LAMBADA, "--tokenizer-type", "ByteTokenizer", "--load", "@small"),
        ("the tokenizer has 257 ids, and the model 200",),
    ),
    "BERT": ((*LAMBADA, "--load", "@bert"), ("is a BERT", "--task VALIDATION")),
    "BERT in the harness": (("--task", "lm_eval:x", "--load", "@bert"), ("is a BERT",)),
    "no checkpoint": ((*LAMBADA, "--load", "@nothing"), ("nothing",)),
    "layout": ((*LAMBADA, "--tensor-model-parallel-size", "3"), ("1 process can't", "1, 2 or 4 tensor-parallel")),
    "output is the input": ((*LAMBADA, "--output", "@lambada.jsonl"), ("is the file of --valid-data",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_fit_are_refused_before_the_start(case: str, folder: Path) -> None:
    words, wanted = REFUSED[case]
    for name, options in {"small": {"vocab_size": 200}, "bert": {"model_type": "bert"}}.items():
        if f"@{name}" in words and not (folder / name).exists():
            random_checkpoint(folder / name, _model(**options))
    with pytest.raises(MegatronDsError) as error:
        _plan(folder, *words)
    for text in wanted:
        assert text in str(error.value)


def test_bert_is_an_error_of_the_checkpoint(folder: Path) -> None:
    random_checkpoint(folder / "another_bert", _model(model_type="bert"))
    with pytest.raises(CheckpointError):
        _plan(folder, *LAMBADA, "--load", "@another_bert")


def test_everything_that_is_wrong_is_in_one_report(folder: Path) -> None:
    with pytest.raises(ConfigError) as error:
        _plan(folder, "--task", "WIKITEXT103", "--limit", "3", "--strict-lambada", "--output", "/")
    assert len(error.value.problems) == 4


def test_harness_that_is_not_installed_is_one_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_ds.cli.evaluate_plan.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="is not installed") as error:
        _plan(folder, "--task", "lm_eval:arc_easy")
    assert 'pip install "megatron-ds[eval]"' in str(error.value)


def test_plan_takes_what_flags_say(folder: Path) -> None:
    plan = _plan(
        folder,
        *("--task", "lm_eval:one", "lm_eval:two", "--num-fewshot", "3", "--limit", "5", "--dtype", "bf16"),
        *("--include-path", str(folder), "--seq-length", "9", "--batch-size", "2", "--eod-id", "7"),
        *("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "3"),
        world_size=12,
    )
    job, task = plan.job, plan.job.task
    assert isinstance(task, HarnessTask)
    assert (job.precision, job.tp_size, job.pp_size, job.batch_size) == ("bf16", 2, 3, 2)
    assert (task.names, task.include_path, task.num_fewshot, task.limit) == (("one", "two"), folder, 3, 5)
    assert (task.length, task.eod_id) == (9, 7)


def test_window_is_that_of_training_and_overlaps_as_in_megatron(folder: Path) -> None:
    task = _plan(folder, *WIKITEXT).job.task
    assert isinstance(task, TextTask)
    ((first, second),) = task.examples
    assert (len(first.tokens), first.num_targets, second.num_targets) == (POSITIONS + 1, POSITIONS, 18)
    shorter = _plan(folder, *WIKITEXT, "--seq-length", "9", "--overlapping-eval", "4").job.task
    assert isinstance(shorter, TextTask)
    assert [window.num_targets for window in shorter.examples[0]] == [9, *[4] * 8, 1]


def _evaluate(folder: Path, output: Path, *words: str) -> dict[str, Any]:
    words = tuple(str(folder / word[1:]) if word.startswith("@") else word for word in words)
    evaluate.main(["--load", str(folder / "run"), "--output", str(output), *words])
    content: dict[str, Any] = json.loads(output.read_text())
    return content


def test_job_shows_a_table_and_writes_what_was_evaluated(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = folder / "lambada.jsonl"
    with caplog.at_level("INFO", logger="megatron_ds"):
        content = _evaluate(folder, tmp_path / "out.json", *LAMBADA, "--strict-lambada")
    (result,) = content.pop("results")
    assert content == {
        "checkpoint": str(folder / "run" / "global_step0"),
        "step": 0,
        "dtype": "fp32",
        "task": ["LAMBADA"],
        "options": {"strict_lambada": True, "seq_length": POSITIONS},
        "files": [{"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}],
        "megatron_ds_version": content["megatron_ds_version"],
    }
    assert (result["name"], result["num_examples"], result["num_tokens"]) == ("LAMBADA", 3, 12)
    assert result["metrics"].keys() == {"accuracy", "num_right", "last_word_perplexity"}
    assert any(message.startswith("LAMBADA  accuracy") for message in caplog.messages)


def test_output_that_is_there_is_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("mine")
    with pytest.raises(SystemExit):
        _evaluate(folder, tmp_path / "out.json", *LAMBADA)
    assert (tmp_path / "out.json").read_text() == "mine"


def _main_in_rank(words: list[str]) -> tuple[int, int, int]:
    """The command in a world of ranks that a launcher would have started."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []

    def join(tp_size: int, pp_size: int) -> ModelParallelUnit:
        found.append(ModelParallelUnit.create(tp_size, pp_size, torch.device("cpu")))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": 1}.items():
            patch.setenv(name, str(value))
        patch.setenv("MASTER_ADDR", "localhost")
        patch.setattr(run, "join", join)
        patch.setattr(run, "stop_distributed", lambda: None)
        evaluate.main(words)
    return found[0].tp_size, found[0].pp_size, found[0].dp_size


def test_command_gives_the_numbers_of_one_process_at_a_layout(folder: Path, tmp_path: Path) -> None:
    alone = _evaluate(folder, tmp_path / "alone.json", *WIKITEXT, "--overlapping-eval", "4")
    output = tmp_path / "four.json"
    words = ["--load", str(folder / "run"), "--task", "WIKITEXT103", "--valid-data", str(folder / "wiki")]
    words += ["--overlapping-eval", "4", "--output", str(output), "--tensor-model-parallel-size", "2"]
    assert run_ranks(4, _main_in_rank, words=words) == [(2, 1, 2)] * 4
    (found,), (expected,) = json.loads(output.read_text())["results"], alone["results"]
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-6)
    assert found["num_tokens"] == expected["num_tokens"]


def test_command_is_checked_before_torch_is_imported(folder: Path) -> None:
    words = ["--load", str(folder / "run"), "--task", "WIKITEXT103", "--valid-data", str(folder / "wiki")]
    script = (
        "import sys\n"
        "from megatron_ds.cli import evaluate, evaluate_options, evaluate_plan\n"
        "evaluate_plan.plan_evaluation(evaluate_options.parser().parse_args(sys.argv[1:]), {})\n"
        "assert 'torch' not in sys.modules"
    )
    finished = launch([sys.executable, "-c", script, *words], folder)
    assert finished.exit_code == 0, finished.output
