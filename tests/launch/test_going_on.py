"""Runs that go on from a checkpoint, as users start them (field reports C3, C7, C16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.training.metrics import read_metrics
from tests.launch.helpers import PRETRAIN, TP, fork, tiny_run

COSINE = {"lr_decay_style": "cosine", "train_iters": "6", "eval_iters": "0"}


def _steps(folder: Path) -> dict[int, dict[str, float]]:
    return {line["step"]: line for line in read_metrics(folder / "metrics.jsonl") if "lm_loss" in line}


@pytest.mark.slow
def test_run_goes_on_at_another_layout_without_its_optimizer_and_as_a_new_run(corpus: str, tmp_path: Path) -> None:
    flags = tiny_run(corpus, **COSINE, save_interval="3")
    finished = fork(1, PRETRAIN, *flags, "--save", "straight", folder=tmp_path)
    assert finished.exit_code == 0, finished.output
    straight = _steps(tmp_path / "straight")

    load = ("--load", "straight", "--load-step", "3")
    finished = fork(2, PRETRAIN, *flags, *load, TP, "2", "--save", "tp2", folder=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "it was saved as TP1 x PP1 x DP1, ZeRO-0, fp32; this run is TP2 x PP1 x DP1, ZeRO-0, fp32" in finished.output
    moved = _steps(tmp_path / "tp2")
    assert list(moved) == [4, 5, 6]
    for step, line in moved.items():
        assert line["lm_loss"] == pytest.approx(straight[step]["lm_loss"], rel=1e-5)
        assert line["learning_rate"] == straight[step]["learning_rate"]
        assert line["consumed_samples"] == straight[step]["consumed_samples"]

    finished = fork(1, PRETRAIN, *flags, *load, "--no-load-optim", "--save", "anew", folder=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "step 3, 12 samples consumed" in finished.output
    assert "the optimizer's state is new: --no-load-optim" in finished.output
    anew = _steps(tmp_path / "anew")
    assert anew[4]["lm_loss"] == straight[4]["lm_loss"]
    assert anew[5]["lm_loss"] != straight[5]["lm_loss"]

    other = (*flags, "--lr", "3e-3")
    finished = fork(1, PRETRAIN, *other, *load, "--save", "other", folder=tmp_path)
    assert finished.exit_code == 2
    assert "--override-lr-scheduler" in finished.output
    finished = fork(1, PRETRAIN, *other, *load, "--finetune", "--save", "new", folder=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "weights of step 3; a new run begins with them at step 0" in finished.output
    new = _steps(tmp_path / "new")
    assert list(new) == [1, 2, 3, 4, 5, 6]
    # The first batch again, with the weights of step 3: neither the loss of step 1 nor that of step 4.
    assert new[1]["lm_loss"] < straight[1]["lm_loss"]
    assert new[1]["consumed_samples"] == 4
    assert new[1]["learning_rate"] == pytest.approx(3 * straight[1]["learning_rate"])

    # The corpus is a few samples long: without those that a smaller batch leaves over, it would end too early.
    smaller = (*flags, "--global-batch-size", "2", "--train-iters", "12", "--lr-decay-iters", "6")
    finished = fork(1, PRETRAIN, *smaller, *load, "--save", "smaller", folder=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert [line["consumed_samples"] for line in _steps(tmp_path / "smaller").values()] == list(range(14, 32, 2))
