"""Validation sets: the losses that training's own evaluation has, from the checkpoint and at another layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.cli.evaluate_options import parser
from megatron_ds.cli.evaluate_plan import plan_evaluation
from megatron_ds.data import build_run_datasets, samples_needed
from megatron_ds.errors import CheckpointError, ConfigError, DataError, MegatronDsError
from megatron_ds.generation.load import load_model
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.tasks.zeroshot.job import EvaluationJob, ValidationTask
from megatron_ds.tasks.zeroshot.results import TaskResult
from megatron_ds.tasks.zeroshot.validation import evaluate_validation
from megatron_ds.training.evaluation import mean_losses
from tests.dist.pool import run_ranks
from tests.generation.checkpoints import random_checkpoint
from tests.generation.models import SIZES, ModelConfig
from tests.launch.helpers import write_corpus
from tests.launch.test_bert_data import bert_flags
from tests.tasks.zeroshot.progress import no_progress

EOD_ID = 0
BATCHES = ("--eval-iters", "2", "--split", "60,40,0")

# What decides on a validation loss besides the weights, and the layout (TP, PP, DP) that it is evaluated at.
CASES: Mapping[str, tuple[tuple[str, ...], tuple[int, int, int]]] = {
    "documents": (
        (
            *("--position-embedding-type", "rope", "--reset-position-ids", "--reset-attention-mask"),
            *("--eod-mask-loss", "--eod-id", str(EOD_ID)),
        ),
        (1, 2, 1),
    ),
    "positions of documents": (("--reset-position-ids", "--eod-id", str(EOD_ID)), (1, 2, 1)),
    "prefix-LM": (("--prefix-lm",), (1, 1, 2)),
    "BERT": (("--model-type", "bert"), (2, 1, 1)),
}


def _flags(name: str, folder: Path) -> tuple[str, ...]:
    more, _ = CASES[name]
    if name == "BERT":
        words = bert_flags(folder)
        kept = {flag: words[words.index(flag) + 1] for flag in ("--data-path", "--tokenizer-type", "--vocab-file")}
        return (*BATCHES, *more, *(word for pair in kept.items() for word in pair))
    return (*BATCHES, *more, "--vocab-size", "67", "--data-path", write_corpus(folder / "corpus", last_token=EOD_ID))


def _trained(case: Case, folder: Path) -> dict[str, float]:
    """The losses that training evaluates after a step, whose checkpoint is in `folder`."""
    tiny = TinyRun(case)
    tiny.train_step(0)
    tiny.save(folder)
    datasets = build_run_datasets(tiny.run, samples=samples_needed(tiny.run), is_builder=True, wait=lambda: None)
    return mean_losses(tiny.run, tiny.engine, datasets.valid["all"], tiny.mpu)


def _evaluated(job: EvaluationJob) -> tuple[list[TaskResult], tuple[int, int, int]]:
    mpu = ModelParallelUnit.create(job.tp_size, job.pp_size, torch.device("cpu"))
    task = job.task
    assert isinstance(task, ValidationTask)
    data = task.run.data
    model = load_model(
        job.checkpoint,
        job.precision,
        mpu,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
    )
    results = evaluate_validation(model, task, job.batch_size, no_progress)
    return results, (mpu.tp_size, mpu.pp_size, mpu.dp_size)


def _job(folder: Path, *words: str, tp: int = 1, pp: int = 1, world_size: int = 1) -> EvaluationJob:
    environ = {"WORLD_SIZE": str(world_size)}
    if world_size > 1:
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    layout = ("--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(pp))
    options = ["--load", str(folder), "--task", "VALIDATION", *layout, *words]
    return plan_evaluation(parser().parse_args(options), environ).job


@pytest.mark.parametrize("name", CASES)
def test_validation_loss_is_that_of_training_at_another_layout(name: str, tmp_path: Path) -> None:
    run, (tp, pp, dp) = tmp_path / "run", CASES[name][1]
    (expected,) = run_ranks(1, _trained, case=Case(more=_flags(name, tmp_path)), folder=run)
    # Sixteen samples in batches of three: the last one is smaller, and the replicas have shares of other sizes.
    job = _job(run, "--batch-size", "3", tp=tp, pp=pp, world_size=tp * pp * dp)
    for (result,), layout in run_ranks(tp * pp * dp, _evaluated, job=job):
        assert layout == (tp, pp, dp)
        assert (result.name, result.num_examples) == ("all", 16)
        assert result.metrics["loss"] == pytest.approx(sum(expected.values()), rel=2e-6)
        assert result.metrics["perplexity"] == pytest.approx(torch.tensor(expected["lm_loss"]).exp().item(), rel=1e-5)
        if name == "BERT":
            assert {key: result.metrics[key] for key in expected} == pytest.approx(expected, rel=2e-6)
            assert expected.keys() == {"lm_loss", "sop_loss"}


def _checkpoint(folder: Path, **data: object) -> Path:
    return random_checkpoint(folder / "run", ModelConfig(**SIZES | {"vocab_size": 64, "seq_length": 16}), data)


def test_token_files_of_ones_own_are_evaluated_whole_or_by_their_second_share(tmp_path: Path) -> None:
    run, prefix = _checkpoint(tmp_path), write_corpus(tmp_path / "corpus")
    whole = _job(run, "--data-path", prefix, "--eval-samples", "5").task
    assert isinstance(whole, ValidationTask)
    assert (whole.num_samples, whole.run.data.data_path, whole.run.data.split) == (5, [prefix], "0,1,0")
    part = _job(run, "--data-path", prefix, "--eval-samples", "5", "--split", "90,10,0").task
    assert isinstance(part, ValidationTask)
    assert part.run.data.split == "90,10,0"
    results = [_evaluated_alone(_job(run, *words)) for words in _two_ways(prefix)]
    assert results[0] != results[1], "other documents"


def _two_ways(prefix: str) -> list[list[str]]:
    return [
        ["--data-path", prefix, "--eval-samples", "5"],
        ["--data-path", prefix, "--split", "90,10,0", "--eval-samples", "5"],
    ]


def _evaluated_alone(job: EvaluationJob) -> list[TaskResult]:
    assert isinstance(job.task, ValidationTask)
    model = load_model(job.checkpoint, job.precision, ModelParallelUnit.offline())
    return evaluate_validation(model, job.task, job.batch_size, no_progress)


REFUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "no data": ((), "there is no validation data"),
    "split alone": (("--split", "1,1,1"), "--split is given without --data-path"),
    "no such file": (("--data-path", "/nowhere/a", "--eval-samples", "1"), "data file not found"),
    "no number of samples": (("--data-path", "PREFIX"), "how many samples to evaluate is not known"),
    "tokenizer of more ids": (
        ("--data-path", "PREFIX", "--eval-samples", "1", "--tokenizer-type", "ByteTokenizer"),
        "the tokenizer has 257 ids, and the model 64",
    ),
    "no share": (("--data-path", "PREFIX", "--eval-samples", "1", "--split", "1,0,0"), "there is no validation data"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_validation_without_data_that_fits_is_refused_before_the_start(case: str, tmp_path: Path) -> None:
    words, message = REFUSED[case]
    prefix = write_corpus(tmp_path / "corpus")
    with pytest.raises(MegatronDsError, match=message) as error:
        _job(_checkpoint(tmp_path), *(prefix if word == "PREFIX" else word for word in words))
    assert isinstance(error.value, (ConfigError, DataError))


def test_token_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "corpus", last_token=70)
    with pytest.raises(DataError, match="token id 70, outside of the vocabulary of 64"):
        _job(_checkpoint(tmp_path), "--data-path", prefix, "--eval-samples", "1")


def test_model_without_a_head_for_tokens_is_refused(tmp_path: Path) -> None:
    config = ModelConfig(**SIZES, model_type="bert", output_head="classification", num_classes=3)
    with pytest.raises(CheckpointError, match="has no head for tokens"):
        _job(random_checkpoint(tmp_path / "run", config), "--eval-samples", "1")
