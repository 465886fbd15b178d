"""The schedule of a run that goes on (field report C16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.checkpoint import Layout, Manifest, find_checkpoint, point_latest_at
from megatron_ds.checkpoint.schedule import saved_schedule, schedule_problems
from megatron_ds.config import ResolvedRun, resolve
from megatron_ds.errors import Problem
from megatron_ds.optim.schedule import LearningRateSchedule
from tests.config.helpers import environ, words

COSINE = ("--lr", "1e-3", "--min-lr", "1e-5", "--lr-decay-style", "cosine", "--lr-warmup-iters", "2")


def _resolved(*flags: str) -> ResolvedRun:
    return resolve(words("--vocab-size", "61", "--train-iters", "20", *flags), environ(1), "test")


def _problems(folder: Path, saved: tuple[str, ...], now: tuple[str, ...]) -> list[Problem]:
    run = _resolved(*saved).run
    checkpoint = folder / "global_step4"
    checkpoint.mkdir(parents=True)
    progress = {"step": 4, "skipped_steps": 0, "consumed_samples": 16}
    Manifest(progress, Layout.of(run), run.model.model_dump(), {}, run.model_dump()).write(checkpoint)
    point_latest_at(folder, checkpoint.name)
    resolved = _resolved("--load", str(folder), *now)
    return schedule_problems(find_checkpoint(folder), resolved.run, resolved.origins)


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ((*COSINE, "--lr", "5e-4"), "peak_lr"),
        ((*COSINE, "--min-lr", "0"), "min_lr"),
        ((*COSINE, "--lr-decay-style", "linear"), "style"),
        ((*COSINE, "--lr-warmup-iters", "3"), "warmup_steps"),
        ((*COSINE, "--train-iters", "30"), "decay_steps"),
    ],
)
def test_another_schedule_is_a_problem_until_someone_says_which_counts(
    tmp_path: Path, now: tuple[str, ...], named: str
) -> None:
    (problem,) = _problems(tmp_path / "a", COSINE, now)
    assert [source.name for source in problem.sources] == [named, named]
    assert problem.sources[0].origin == f"the checkpoint {tmp_path / 'a' / 'global_step4'}"
    for number, switch in enumerate(("override-lr-scheduler", "use-checkpoint-lr-scheduler", "finetune")):
        assert f"--{switch}" in problem.advice or switch == "finetune"
        assert _problems(tmp_path / str(number), COSINE, (*now, f"--{switch}")) == []


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (COSINE, COSINE),
        ((*COSINE, "--lr-decay-iters", "30"), (*COSINE, "--train-iters", "30")),
        ((*COSINE[:-2], "--lr-warmup-fraction", "0.1"), COSINE),
        (("--lr-decay-style", "constant"), ("--lr-decay-style", "constant", "--train-iters", "99")),
    ],
)
def test_the_same_schedule_in_other_words_goes_on(tmp_path: Path, saved: tuple[str, ...], now: tuple[str, ...]) -> None:
    assert _problems(tmp_path, saved, now) == []


def test_the_saved_schedule_stands_in_for_the_runs_own(tmp_path: Path) -> None:
    _problems(tmp_path, COSINE, COSINE)
    other = _resolved("--lr", "7", "--lr-decay-style", "constant", "--train-iters", "99")
    resolved = other.with_schedule(saved_schedule(find_checkpoint(tmp_path)), "the checkpoint")
    schedules = [
        LearningRateSchedule.from_config(each.run.optimizer, each.run.training.train_iters)
        for each in (resolved, _resolved(*COSINE))
    ]
    assert schedules[0] == schedules[1]
    assert resolved.origins["optimizer.lr"] == "the checkpoint"
