"""Whole argument lists of the forks' scripts: one report says all that has to change, and what it says is enough."""

from __future__ import annotations

import pytest

from megatron_ds.cli.evaluate_options import parser as evaluate_parser
from megatron_ds.cli.other_flags import refuse_other_flags
from megatron_ds.cli.preprocess import preprocess_parser
from megatron_ds.config import ResolvedRun, collect
from megatron_ds.config.catalog import all_options
from megatron_ds.config.settings import Given
from megatron_ds.errors import ConfigError, Problem
from megatron_ds.tasks.data import MODEL_OPTIONS
from tests.config.fork_lines import LAMBADA, LINES, PREPROCESS, PREPROCESS_WITH_HF, ForkLine
from tests.config.helpers import write_json


def _known(line: ForkLine) -> dict[str, Given]:
    """What finetune.py knows of a run before it resolves it: steps follow from epochs, and the head from the task."""
    if line.family is not None:
        return {}
    options = MODEL_OPTIONS[str(line.values["task.task"])]
    return {"training.train_iters": Given(0, "task"), **{f"model.{k}": Given(v, "task") for k, v in options.items()}}


def _resolve(line: ForkLine, words: list[str], tmp_path, deepspeed) -> tuple[ResolvedRun | None, list[Problem]]:
    if deepspeed is not None:
        words = [*words, "--deepspeed_config", write_json(tmp_path / "ds_config.json", deepspeed)]
    environ = {"WORLD_SIZE": str(line.processes), "DS_ACCELERATOR": "cuda"}
    return collect(words, environ, "x", line.family, _known(line))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_line_of_a_fork_as_it_comes_reports_all_that_has_to_change(line, tmp_path):
    _, problems = _resolve(line, line.words(), tmp_path, line.deepspeed)
    for flag, instead in line.changes.items():
        told = [problem for problem in problems if flag in str(problem).replace("\n", " ").split(" ")]
        assert len(told) == 1, (flag, [str(problem) for problem in problems])
        assert told[0].advice, flag
        if instead:
            assert instead.split()[0] in told[0].advice or f"here it is {instead.split()[0]}" in str(told[0])
    for part in line.others:
        assert [part in problem.message for problem in problems].count(True) == 1, part
    assert len(problems) == len(line.changes) + len(line.others), [str(problem) for problem in problems]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_line_of_a_fork_as_advised_resolves(line, tmp_path):
    deepspeed = None
    if line.deepspeed is not None:
        deepspeed = {**line.deepspeed, **line.deepspeed_changes}
        deepspeed = {key: value for key, value in deepspeed.items() if value is not None}
    resolved, problems = _resolve(line, line.changed_words(), tmp_path, deepspeed)
    assert [str(problem) for problem in problems] == []
    assert resolved is not None and resolved.run.world_size == line.processes
    for path, value in line.values.items():
        block, name = path.split(".")
        assert path in all_options()
        assert getattr(getattr(resolved.run, block), name) == value, path


def test_line_of_an_evaluation_names_the_command_for_it():
    _, problems = collect(LAMBADA, {"WORLD_SIZE": "8", "DS_ACCELERATOR": "cuda"}, "finetune.py")
    for part in ("task is one of", "--strict-lambada"):
        (problem,) = [problem for problem in problems if part in problem.message]
        assert "`megatron-ds evaluate --load DIR --task" in problem.advice


def test_line_of_an_evaluation_tells_the_command_for_it_all_that_it_does_not_need():
    parser = evaluate_parser()
    with pytest.raises(ConfigError) as error:
        refuse_other_flags(parser, LAMBADA)
    refused = [problem.message.split()[0] for problem in error.value.problems]
    assert refused == [
        *("--num-layers", "--hidden-size", "--num-attention-heads", "--checkpoint-activations"),
        *("--max-position-embeddings", "--log-interval", "--fp16", "--no-load-optim", "--no-load-rng"),
    ]
    assert {problem.advice.split(":")[0] for problem in error.value.problems} == {
        "leave it out",
        "give --dtype, where it is not that of the training",
    }


def test_line_of_an_evaluation_as_advised_is_understood():
    parser, words = evaluate_parser(), []
    with pytest.raises(ConfigError) as error:
        refuse_other_flags(parser, LAMBADA)
    refused = {problem.message.split()[0] for problem in error.value.problems}
    for word in LAMBADA:
        if word.startswith("--"):
            kept = word not in refused
        words += [word] if kept else []
    refuse_other_flags(parser, words)
    arguments = parser.parse_args(words)
    assert arguments.task == ["LAMBADA"] and arguments.strict_lambada and arguments.batch_size == 8


def test_line_of_preprocess_data_is_understood_as_it_comes():
    parser = preprocess_parser()
    refuse_other_flags(parser, PREPROCESS)
    arguments = parser.parse_args(PREPROCESS)
    assert arguments.split_sentences and arguments.workers == 8
    assert arguments.tokenizer_type == "BertWordPieceLowerCase"


def test_line_of_preprocess_data_with_another_tokenizer_flag_is_understood_as_advised():
    parser = preprocess_parser()
    with pytest.raises(ConfigError, match="--tokenizer-name-or-path NAME"):
        refuse_other_flags(parser, PREPROCESS_WITH_HF)
    advised = [
        "--tokenizer-name-or-path" if word == "--hf-autotokenizer-model" else word for word in PREPROCESS_WITH_HF
    ]
    refuse_other_flags(parser, advised)
    assert parser.parse_args(advised).tokenizer_name_or_path == "gpt2"
