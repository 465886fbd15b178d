"""What finetune.py refuses before it starts, and what it takes from options and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.config import write_resolved
from megatron_ds.config.report import RUN_FILE
from megatron_ds.errors import MegatronDsError
from tests.dist.pool import run_ranks
from tests.tasks.toy import finetune, plan_of, task_flags

BATCH = ("--micro-batch-size", "4")


def _without(flags: list[str], flag: str) -> list[str]:
    """The command line without a flag and its value."""
    place = flags.index(flag)
    return flags[:place] + flags[place + 2 :]


@pytest.mark.parametrize(
    ("task", "more", "found"),
    [
        ("MNLI", ["--seq-length", "4"], "seq_length 4 holds no two texts"),
        ("RACE", ["--seq-length", "2"], "seq_length 2 holds no two texts"),
        ("SFT", ["--no-reset-attention-mask"], "leave --no-reset-attention-mask out, or give --no-packing"),
        ("SFT", ["--no-reset-position-ids"], "see and count their own tokens only"),
        ("SFT", ["--no-packing", "--reset-attention-mask"], "without packing each has its own"),
        ("SFT", ["--no-packing", "--prefix-lm"], "SFT can't be with prefix_lm"),
        ("MNLI", ["--train-iters", "5"], "2 epochs of 7 examples are 4 steps, and train_iters is 5"),
    ],
)
def test_plan_of_options_against_the_task_is_refused(task: str, more: list[str], found: str, tmp_path: Path) -> None:
    with pytest.raises(MegatronDsError) as error:
        plan_of([*task_flags(task, tmp_path), *BATCH, *more])
    assert found in str(error.value)


@pytest.mark.parametrize(("given", "steps"), [(["--train-iters", "0"], 0), (["--epochs", "0"], 0), ([], 6)])
def test_plan_without_steps_has_none(given: list[str], steps: int, tmp_path: Path) -> None:
    flags = _without(task_flags("MNLI", tmp_path), "--epochs")
    assert plan_of([*flags, *BATCH, *given]).resolved.run.training.train_iters == steps


def test_plan_of_a_written_config_is_the_same_run(tmp_path: Path) -> None:
    first = plan_of([*task_flags("MNLI", tmp_path), *BATCH, "--save", str(tmp_path / "run")]).resolved
    (tmp_path / "run").mkdir()
    write_resolved(first, tmp_path / "run")
    again = plan_of(["--config", str(tmp_path / "run" / RUN_FILE)]).resolved
    assert again.run == first.run
    assert first.run.task.epochs is not None
    assert first.run.training.train_iters == 4


def test_plan_begins_with_the_body_of_a_model_of_another_task(tmp_path: Path) -> None:
    """MNLI's three classes are nothing to RACE's choices; nor is a BERT anything to SFT."""
    saved = str(tmp_path / "run")
    mnli = [*task_flags("MNLI", tmp_path), *BATCH, "--save", saved, "--save-interval", "1", "--train-iters", "1"]
    run_ranks(1, finetune, flags=_without(mnli, "--epochs"))
    race = [*task_flags("RACE", tmp_path), *BATCH, "--pretrained-checkpoint", saved]
    model = plan_of(race).resolved.run.model
    assert (model.output_head, model.num_classes, model.num_layers) == ("multiple_choice", None, 2)
    with pytest.raises(MegatronDsError, match=r"global_step1 is one of finetuning on MNLI, not of RACE"):
        plan_of([*race[:-2], "--load", saved])
    with pytest.raises(MegatronDsError, match=r"SFT finetunes a GPT, and .* is a BERT"):
        plan_of([*task_flags("SFT", tmp_path), *BATCH, "--pretrained-checkpoint", saved])
