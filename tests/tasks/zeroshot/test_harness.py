"""Tasks of lm-evaluation-harness: the numbers are those that its own model gives for the exported checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from megatron_ds.cli import checkpoint_tools, evaluate
from megatron_ds.cli.evaluate_options import parser
from megatron_ds.cli.evaluate_plan import Plan, plan_evaluation
from megatron_ds.errors import ConfigError, DataError
from megatron_ds.generation.load import load_model
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.tasks.zeroshot import run
from megatron_ds.tasks.zeroshot.harness import task_manager
from megatron_ds.tasks.zeroshot.job import EvaluationJob, HarnessTask
from megatron_ds.tasks.zeroshot.shared_model import SharedModel
from tests.dist.pool import run_ranks
from tests.tasks.zeroshot.harness_tasks import POSITIONS, SENTENCES, write_checkpoint, write_tasks
from tests.tasks.zeroshot.progress import no_progress

TASKS = ("tiny_choice", "tiny_rolling", "tiny_text")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness")
    write_checkpoint(folder)
    write_tasks(folder)
    return folder


@pytest.fixture(autouse=True, scope="module")
def data_sets_in_a_folder_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def _words(folder: Path, output: Path, *tasks: str) -> list[str]:
    names = [f"lm_eval:{task}" for task in tasks]
    paths = ["--load", str(folder / "run"), "--include-path", str(folder / "tasks"), "--output", str(output)]
    return [*paths, "--task", *names, "--batch-size", "3"]


def _results(output: Path) -> dict[str, dict[str, float]]:
    return {result["name"]: result["metrics"] for result in json.loads(output.read_text())["results"]}


@pytest.fixture(scope="module")
def ours(folder: Path) -> dict[str, dict[str, float]]:
    output = folder / "ours.json"
    evaluate.main(_words(folder, output, *TASKS))
    return _results(output)


def _harness_model(folder: Path) -> Any:
    """The harness's own model of an exported checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        # Its module imports accelerate, which a model that is there already makes no use of.
        for name in ("accelerate", "accelerate.utils"):
            patch.setitem(sys.modules, name, MagicMock())
        from lm_eval.models.huggingface import HFLM
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2)


def _export(folder: Path) -> None:
    exported = folder / "exported"
    if not exported.exists():
        checkpoint_tools.main(["export", "--format", "hf", "--input", str(folder / "run"), "--output", str(exported)])


def _plan(folder: Path, *words: str, world_size: int = 1) -> Plan:
    environ = {"WORLD_SIZE": str(world_size)}
    if world_size > 1:
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    arguments = [*_words(folder, folder / "none.json", *TASKS), *words]
    return plan_evaluation(parser().parse_args(arguments), environ)


def _theirs(folder: Path) -> dict[str, dict[str, Any]]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    _export(folder)
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    model = _harness_model(folder / "exported")
    found = simple_evaluate(model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)
    return dict(found["results"])


def test_numbers_are_those_of_the_harness_for_the_exported_model(
    folder: Path, ours: dict[str, dict[str, float]]
) -> None:
    theirs = _theirs(folder)
    assert ours.keys() == theirs.keys() == set(TASKS)
    for task, metrics in theirs.items():
        for name, value in metrics.items():
            if isinstance(value, float):
                assert ours[task][name.removesuffix(",none")] == pytest.approx(value, rel=1e-5), (task, name)


@pytest.fixture(scope="module")
def both_models(folder: Path, ours: dict[str, dict[str, float]]) -> tuple[Any, Any]:
    """Ours, and the harness's of the exported checkpoint."""
    from megatron_ds.tasks.zeroshot.harness_model import HarnessModel

    job = _plan(folder).job
    assert isinstance(job.task, HarnessTask)
    model = load_model(job.checkpoint, "fp32", ModelParallelUnit.offline())
    shared = SharedModel(model, job.task.tokenizer, 2, no_progress)
    _export(folder)
    return HarnessModel(shared, model.config, job.task), _harness_model(folder / "exported")


def _requests(*arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance("loglikelihood", {}, each, number) for number, each in enumerate(arguments)]


PAIRS = (
    ("the cat", " sat on the mat"),
    ("", "a dog ran"),
    ("", "<|endoftext|>a dog"),
    ("who ran  ", "to the mat"),
    (SENTENCES[2] * 3, " and the hat"),
    # As many targets as the model sees.
    ("a", " b" * (POSITIONS // 2)),
)


def test_log_probabilities_of_requests_are_those_of_the_harness(both_models: tuple[Any, Any]) -> None:
    ours, theirs = both_models
    found, expected = (model.loglikelihood(_requests(*PAIRS)) for model in (ours, theirs))
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], rel=1e-5)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
    texts = _requests(*((text,) for text in (SENTENCES[0], SENTENCES[2], SENTENCES[2] * 2)))
    rolling, wanted = ours.loglikelihood_rolling(texts), theirs.loglikelihood_rolling(texts)
    assert rolling == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("options", [{"until": [" ", "t"]}, {"until": "o", "max_gen_toks": 5}, {"until": []}], ids=str)
def test_texts_are_those_of_the_harness(options: dict[str, Any], both_models: tuple[Any, Any]) -> None:
    options = {"do_sample": False, "max_gen_toks": 12} | options
    requests = _requests(*((text, options) for text in (*SENTENCES, "the", "mat and")))
    found, expected = (model.generate_until(requests) for model in both_models)
    assert found == expected
    assert len(set(found)) > 1


def test_drawn_texts_follow_from_the_number_of_the_request(both_models: tuple[Any, Any]) -> None:
    ours, _ = both_models
    options = {"do_sample": True, "temperature": 3.0, "top_k": 50, "max_gen_toks": 12}
    requests = _requests(("the", options), ("the", options))
    first, second = ours.generate_until(requests)
    assert first != second
    assert ours.generate_until(requests) == [first, second]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "asks for 256 new tokens, and the model sees 32"),
        ({"max_gen_toks": 2, "num_beams": 4}, "num_beams: 4"),
        ({"max_gen_toks": 2, "do_sample": True, "top_k": -1}, "asks for temperature 0, top_k -1"),
        ({"max_gen_toks": 2, "do_sample": True, "top_p": 1.5}, "top_p 1.5"),
        ({"max_gen_toks": 2, "temperature": -1.0}, "temperature -1"),
    ],
)
def test_generation_that_is_not_possible_is_refused(
    options: dict[str, Any], message: str, both_models: tuple[Any, Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        both_models[0].generate_until(_requests(("the", options)))


def test_top_k_of_zero_is_off(both_models: tuple[Any, Any]) -> None:
    drawn = [{"max_gen_toks": 4, "do_sample": True, **more} for more in ({}, {"top_k": 0})]
    plain, off = (both_models[0].generate_until(_requests(("the cat", options))) for options in drawn)
    assert off == plain


def test_context_of_spaces_begins_after_the_end_of_a_document(both_models: tuple[Any, Any]) -> None:
    """Its tokens are the target's, as the harness moves spaces there."""
    ours = both_models[0]
    spaces, end = (ours.loglikelihood(_requests((context, " the cat"))) for context in ("   ", ""))
    ((score, _),) = spaces
    (alone,) = ours._loglikelihood_tokens([(("", ""), [ours.prefix_token_id], ours.tok_encode("    the cat"))])
    assert score == pytest.approx(alone[0])
    assert spaces != end


def test_task_that_fails_by_its_data_is_an_error_of_the_data(folder: Path, tmp_path: Path) -> None:
    text = (
        (folder / "tasks" / "tiny_choice.yaml")
        .read_text()
        .replace("tiny_choice", "broken")
        .replace("{{question}}", "{{quiz}}")
    )
    (tmp_path / "broken.yaml").write_text(text)
    words = ["--load", str(folder / "run"), "--include-path", str(tmp_path), "--task", "lm_eval:broken"]
    with pytest.raises(DataError, match="can't run broken: UndefinedError: 'quiz' is undefined"):
        evaluate.main(words)


def _evaluated(job: EvaluationJob, cache: Path) -> tuple[list[Any], tuple[int, int, int]]:
    """What a rank of `run_evaluation` returns, in the process group of the test."""
    mpu = ModelParallelUnit.create(job.tp_size, job.pp_size, torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
        patch.setattr(run, "join", lambda tp_size, pp_size: mpu)
        patch.setattr(run, "stop_distributed", lambda: None)
        return run.run_evaluation(job, no_progress), (mpu.tp_size, mpu.pp_size, mpu.dp_size)


def test_two_stages_serve_the_harness_of_rank_0(
    folder: Path, ours: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    job = _plan(folder, "--pipeline-model-parallel-size", "2", world_size=2).job
    first, (served, layout) = run_ranks(2, _evaluated, job=job, cache=tmp_path)
    assert layout == first[1] == (1, 2, 1)
    assert served == [], "rank 0 has the numbers"
    found = {result.name: dict(result.metrics) for result in first[0]}
    assert found.keys() == ours.keys()
    for task in TASKS:
        assert found[task] == pytest.approx(ours[task], rel=1e-5)


def test_task_that_the_harness_does_not_know_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = _plan(folder).job.task
    assert isinstance(task, HarnessTask)
    from lm_eval.tasks import TaskManager

    # Reading all of the harness's own tasks takes many seconds.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    with pytest.raises(ConfigError, match="no task 'tiny_choise'") as error:
        task_manager(replace(task, names=("tiny_choise", "tiny_text"), include_path=None))
    assert len(error.value.problems) == 2
