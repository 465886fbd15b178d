"""Finetuned models: the numbers of finetuning's own evaluation, from the checkpoint and at another layout."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
import torch

from megatron_ds.cli.evaluate_options import parser
from megatron_ds.cli.evaluate_plan import plan_evaluation
from megatron_ds.cli.finetune_plan import plan_finetuning
from megatron_ds.errors import CheckpointError, DataError
from megatron_ds.generation.load import load_model
from megatron_ds.models import model_losses, whole_model_specs
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.tasks.finetune import TaskSamples
from megatron_ds.tasks.zeroshot.finetuned import evaluate_finetuned
from megatron_ds.tasks.zeroshot.job import EvaluationJob, FinetunedTask
from megatron_ds.tasks.zeroshot.results import TaskResult
from megatron_ds.training.saving import CheckpointSaver
from tests.dist.pool import run_ranks
from tests.tasks.glue_files import STS, STS_ROW, tabbed
from tests.tasks.zeroshot.progress import no_progress

WORDS = ("good", "bad", "the", "film", "was", "story", "about", "people", "town", "not")
BERT = (
    *("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "24"),
    # Scores that differ: a correlation of nearly equal ones is all rounding.
    *("--make-vocab-size-divisible-by", "1", "--init-method-std", "0.3"),
)
# Task, and the layout (TP, PP, DP) that it is evaluated at.
LAYOUTS = {"SST-2": (1, 1, 2), "STS-B": (2, 1, 1), "RACE": (1, 2, 1)}


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def _write(task: str, folder: Path) -> Path:
    """Seven examples: no batch size divides them."""
    rng = random.Random(1)
    if task == "RACE":
        for level, count in (("middle", 3), ("high", 4)):
            (folder / "dev" / level).mkdir(parents=True)
            content = {
                "article": _words(rng, 30),
                "questions": [f"{_words(rng, 3)} _ ." for _ in range(count)],
                "options": [[_words(rng, 1) for _ in range(4)] for _ in range(count)],
                "answers": ["ABCD"[number % 4] for number in range(count)],
                "id": f"{level}1.txt",
            }
            (folder / "dev" / level / "1.txt").write_text(json.dumps(content))
        return folder / "dev"
    if task == "SST-2":
        lines = [tabbed("sentence label"), *(f"{_words(rng, 6)}\t{number % 2}" for number in range(7))]
    else:
        rows = (STS_ROW.format(number, _words(rng, 5), _words(rng, 5)) for number in range(7))
        lines = [tabbed(f"{STS} score"), *(f"{row}\t{number * 0.7:.3f}" for number, row in enumerate(rows))]
    (folder / "dev.tsv").write_text("\n".join(lines) + "\n")
    return folder / "dev.tsv"


def _flags(task: str, folder: Path) -> list[str]:
    vocab, data = folder / "vocab.txt", str(_write(task, folder))
    vocab.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)) + "\n")
    tokenizer = ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", str(vocab)]
    batches = ["--micro-batch-size", "4", "--lr", "1e-3", "--epochs", "1", "--zero-stage", "0"]
    return [*BERT, *tokenizer, "--task", task, "--train-data", data, "--valid-data", data, *batches]


def _finetuned(flags: list[str], folder: Path) -> dict[str, float]:
    """What finetuning's evaluation gives for a model whose checkpoint is in `folder`."""
    from megatron_ds.engine.build import build_engine

    places = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    plan = plan_finetuning(flags, {"WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu", **places})
    run, job = plan.resolved.run, plan.job
    mpu = ModelParallelUnit.create(1, 1, torch.device("cpu"))
    losses = model_losses(run.model, mpu)
    engine = build_engine(run, plan.resolved.deepspeed, job.layers(mpu), losses, mpu, lambda step: 1e-3)
    CheckpointSaver(run, whole_model_specs(partial(job.layers), mpu.topology), engine, mpu, job.layers(mpu), None)(
        folder
    )
    (found,) = TaskSamples(run, job.data, mpu).evaluate(engine, "valid")
    return {"loss": sum(found.losses.values()), **found.metrics}


def _evaluated(job: EvaluationJob) -> tuple[list[TaskResult], tuple[int, int, int]]:
    mpu = ModelParallelUnit.create(job.tp_size, job.pp_size, torch.device("cpu"))
    model = load_model(job.checkpoint, job.precision, mpu)
    assert isinstance(job.task, FinetunedTask)
    results = evaluate_finetuned(model, job.task, job.batch_size, no_progress)
    return results, (mpu.tp_size, mpu.pp_size, mpu.dp_size)


def _job(folder: Path, task: str, data: Path, tp: int = 1, pp: int = 1, world_size: int = 1) -> EvaluationJob:
    environ = {"WORLD_SIZE": str(world_size)}
    if world_size > 1:
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    layout = ["--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(pp)]
    words = ["--load", str(folder), "--task", task, "--valid-data", str(data), "--batch-size", "3", *layout]
    return plan_evaluation(parser().parse_args(words), environ).job


@pytest.mark.parametrize("task", LAYOUTS)
def test_finetuned_model_has_the_numbers_of_its_own_evaluation_at_another_layout(task: str, tmp_path: Path) -> None:
    run, (tp, pp, dp) = tmp_path / "run", LAYOUTS[task]
    flags = _flags(task, tmp_path)
    (expected,) = run_ranks(1, _finetuned, flags=flags, folder=run)
    data = Path(flags[flags.index("--valid-data") + 1])
    job = _job(run, task, data, tp, pp, tp * pp * dp)
    for (result,), layout in run_ranks(tp * pp * dp, _evaluated, job=job):
        assert layout == (tp, pp, dp)
        assert (result.name, result.num_examples) == (data.stem, 7), "each example once"
        assert dict(result.metrics) == pytest.approx(expected, rel=1e-5)
    twice = ["--load", str(run), "--task", task, "--valid-data", str(data), str(data)]
    sets = plan_evaluation(parser().parse_args(twice), {"WORLD_SIZE": "1"}).job.task.sets
    assert [each.name for each in sets] == [data.stem, f"{data.stem}_2"]
    with pytest.raises(CheckpointError, match="is not a model of MNLI"):
        _job(run, "MNLI", data)
    with pytest.raises(CheckpointError, match="can't be asked for the next one"):
        _job(run, "LAMBADA", data)
    with pytest.raises(DataError):
        _job(run, task, tmp_path / "nothing")
