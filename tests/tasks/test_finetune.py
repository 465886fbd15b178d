"""Finetuning at every layout: the same numbers, each example once, and the same after a stop (field report G8)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from megatron_ds.checkpoint.find import best_step, find_checkpoint
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError
from megatron_ds.models import SequentialModel, bert_layers, initialize_weights
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks
from tests.generation.checkpoints import random_checkpoint
from tests.tasks.toy import GPT, NO_DROPOUT, Outcome, finetune, plan_of, task_flags

TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
BATCH = ("--global-batch-size", "4", "--micro-batch-size")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], Outcome]]:
    """Flags of each task, and its run in one process, with one micro-batch a step."""
    found = {}
    for task in ("MNLI", "STS-B", "RACE", "SFT"):
        flags = [*task_flags(task, tmp_path_factory.mktemp(task)), *NO_DROPOUT]
        found[task] = flags, run_ranks(1, finetune, flags=[*flags, *BATCH, "4"])[0]
    return found


@pytest.mark.parametrize(
    ("task", "layout", "micro_batch_size"),
    [
        ("MNLI", (2, 2, 2, 1), 1),
        ("MNLI", (1, 1, 2, 2), 2),
        ("STS-B", (2, 1, 2, 3), 1),
        ("STS-B", (1, 2, 1, 1), 2),
        ("RACE", (1, 2, 2, 1), 1),
        ("RACE", (2, 1, 1, 2), 4),
        ("SFT", (2, 2, 1, 1), 2),
        ("SFT", (1, 1, 4, 3), 1),
    ],
    ids=str,
)
def test_finetuning_at_a_layout_gives_the_numbers_of_one_process(
    straight: dict[str, tuple[list[str], Outcome]], task: str, layout: tuple[int, ...], micro_batch_size: int
) -> None:
    flags, alone = straight[task]
    tp, pp, dp, zero = layout
    more = [TP, str(tp), PP, str(pp), "--zero-stage", str(zero), *BATCH, str(micro_batch_size)]
    for outcome in run_ranks(tp * pp * dp, finetune, flags=[*flags, *more]):
        assert outcome.layout == layout
        assert outcome.losses == pytest.approx(alone.losses, rel=1e-5)
        assert outcome.norms == pytest.approx(alone.norms, rel=1e-5)
        assert len(outcome.metrics) == len(alone.metrics) == 2
        for theirs, ours in zip(outcome.metrics, alone.metrics, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-5)


def test_last_batch_of_an_epoch_has_the_mean_over_its_own_examples(
    straight: dict[str, tuple[list[str], Outcome]],
) -> None:
    """Seven examples in batches of four: a loss over all seven by hand is what an evaluation before training gives."""
    flags, alone = straight["MNLI"]
    assert len(alone.losses) == 4  # two epochs of two steps
    plan = plan_of([*flags, *BATCH, "4", "--lr", "1e-30"])
    run, examples = plan.resolved.run, plan.job.data.train.examples
    assert [run.training.train_iters, run.training.eval_interval] == [4, 2]
    model = SequentialModel(bert_layers(run.model, ModelParallelUnit.offline()))
    initialize_weights(model.named_parameters(), run.training.seed, ModelParallelUnit.offline())
    samples = [examples[number] for number in range(7)]
    inputs = tuple(
        torch.stack([torch.from_numpy(getattr(sample, name)) for sample in samples])
        for name in ("tokens", "token_types", "padding_mask")
    )
    by_hand = F.cross_entropy(model(inputs), torch.tensor([int(sample.label) for sample in samples]))
    frozen = run_ranks(1, finetune, flags=[*flags, *BATCH, "4", "--lr", "1e-30"])[0]
    assert frozen.metrics[0]["classification_loss"] == pytest.approx(by_hand.item(), rel=1e-5)
    # Four and three examples.
    assert (4 * frozen.losses[0] + 3 * frozen.losses[1]) / 7 == pytest.approx(by_hand.item(), rel=1e-5)


def test_metrics_count_seven_examples_once(straight: dict[str, tuple[list[str], Outcome]], tmp_path: Path) -> None:
    flags, _ = straight["MNLI"]
    saved = [*flags, *BATCH, "2", "--zero-stage", "1", "--save", str(tmp_path)]
    outcomes = run_ranks(2, finetune, flags=saved)
    accuracy = outcomes[0].metrics[-1]["accuracy"]
    assert [outcome.metrics for outcome in outcomes] == [outcomes[0].metrics] * 2
    assert (accuracy * 7) == pytest.approx(round(accuracy * 7))
    lines = (tmp_path / "predictions" / "step4" / "valid_MNLI.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == [str(number) for number in range(7)]
    best = best_step(tmp_path)
    assert best is not None
    scores = {step: find_checkpoint(tmp_path, step).manifest.score for step in (2, 4)}
    assert scores[best] == max(score for score in scores.values() if score is not None)
    assert find_checkpoint(tmp_path).manifest.metrics == {"MNLI.accuracy": accuracy}


@pytest.mark.parametrize("layout", [(1, 1, 2, 1), (1, 2, 1, 1)], ids=str)
def test_finetuning_that_is_stopped_goes_on_to_the_bit(
    layout: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, in the middle of an epoch."""
    tp, pp, dp, zero = layout
    more = [TP, str(tp), PP, str(pp), "--zero-stage", str(zero), *BATCH, "2", "--save"]
    flags = [*task_flags("MNLI", tmp_path), *more]
    whole = run_ranks(tp * pp * dp, finetune, flags=[*flags, str(tmp_path / "whole")])[0]
    monkeypatch.setenv("STOP_AFTER", "3")
    part = str(tmp_path / "part")
    first = run_ranks(tp * pp * dp, _stopped, flags=[*flags, part])[0]
    second = run_ranks(tp * pp * dp, finetune, flags=[*flags, part, "--load", part])[0]
    assert len(first.losses) == 3
    assert [*first.losses, *second.losses] == whole.losses
    assert second.metrics[-1] == whole.metrics[-1]


def test_finetuning_goes_on_with_batches_of_another_size_for_all_epochs(tmp_path: Path) -> None:
    """Three steps of four are twelve of the 16 samples that two epochs of seven examples have, one in eight filling."""
    saved = str(tmp_path / "run")
    flags = [*task_flags("MNLI", tmp_path), "--save", saved, *BATCH]
    run_ranks(1, _stopped, flags=[*flags, "4"])
    more = ["--load", saved, "--allow-data-change", "--global-batch-size", "2", "--micro-batch-size", "2"]
    outcome = run_ranks(1, finetune, flags=[*flags[:-3], *more])[0]
    assert len(outcome.losses) == 2
    assert [step for step, _ in outcome.evaluations] == [4, 5]
    longer = ["--train-iters", "9", *flags[:-3], *more]
    place = longer.index("--epochs")
    assert len(run_ranks(1, finetune, flags=longer[:place] + longer[place + 2 :])[0].losses) == 4


def _stopped(flags: list[str]) -> Outcome:
    import os

    os.environ["STOP_AFTER"] = "3"
    return finetune(flags)


def test_loss_of_packed_examples_is_that_of_each_by_itself(tmp_path: Path) -> None:
    flags = [*task_flags("SFT", tmp_path), *NO_DROPOUT, "--lr", "1e-30", *BATCH, "2"]
    packed = run_ranks(1, finetune, flags=flags)[0]
    alone = run_ranks(1, finetune, flags=[*flags, "--no-packing"])[0]
    assert len(packed.losses) < len(alone.losses)
    assert packed.metrics[0]["lm_loss"] == pytest.approx(alone.metrics[0]["lm_loss"], rel=1e-5)
    assert math.isfinite(packed.metrics[0]["lm_loss"])


_WITHOUT_TASK = [*GPT, "--train-data", "x", "--epochs", "2", "--lr", "1e-3", "--micro-batch-size", "1"]


def test_plan_of_a_misspelt_task_has_that_problem_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of([*_WITHOUT_TASK, "--task", "cola"])
    (problem,) = caught.value.problems
    assert problem.advice == "did you mean CoLA?"


def test_plan_without_a_task_asks_for_it_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(_WITHOUT_TASK)
    assert caught.value.problems[0].message == "finetune.py trains a task, and none is given"
    assert "and task is not" not in str(caught.value)


@pytest.mark.parametrize(("flag", "unit"), [("--packing", "sequence"), ("--no-packing", "example")])
def test_plan_counts_what_its_batches_are_made_of(flag: str, unit: str, tmp_path: Path) -> None:
    plan = plan_of([*task_flags("SFT", tmp_path), "--micro-batch-size", "1", flag])
    assert f" training {unit}s, " in plan.notes[0]
    assert plan.resolved.origins["training.train_iters"].endswith(f" {unit}s")


def test_plan_of_a_task_from_a_model_of_another_family_says_that_alone(tmp_path: Path) -> None:
    model = ModelConfig(num_layers=1, hidden_size=16, num_attention_heads=2, seq_length=16, vocab_size=257)
    folder = random_checkpoint(tmp_path / "gpt", model)
    with pytest.raises(CheckpointError) as caught:
        plan_of(["--task", "MNLI", "--train-data", "x", "--pretrained-checkpoint", str(folder)])
    (problem,) = caught.value.problems
    assert "MNLI finetunes a BERT, and" in problem.message and problem.message.endswith("is a GPT")
    assert (problem.advice or "").endswith("a --task of a GPT: SFT")
