"""The loop ends a run whose tensor-parallel ranks hold different copies (field report P3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.tiny_run import Case
from megatron_ds.data import Datasets
from megatron_ds.engine.base import StepResult, TrainProgress
from megatron_ds.errors import TrainingError
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.training.loop import train
from megatron_ds.training.pretrain import PretrainingSamples


class _Samples:
    """Samples of zeros."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> object:
        return torch.zeros(17, dtype=torch.int64).numpy()


class FakeEngine:
    """An engine whose copies differ from some step on, or whose loss is NaN."""

    def __init__(self, first_bad_step: int = 99, first_nan_step: int = 99) -> None:
        self.progress = TrainProgress()
        self.checked: list[int] = []
        self._first_bad_step = first_bad_step
        self._first_nan_step = first_nan_step

    def train_step(self, batches: object) -> StepResult:
        self.progress = self.progress.after_step(8, skipped=False)
        loss = math.nan if self.progress.step >= self._first_nan_step else 1.0
        return StepResult({"lm_loss": torch.tensor(loss)}, loss, 1e-3, skipped=False, loss_scale=1.0)

    def first_not_finite(self, batches: object) -> str | None:
        return "layers.0.mlp.dense_h_to_4h on rank 0" if self.progress.step >= self._first_nan_step else None

    def differing_replicas(self) -> list[str]:
        self.checked.append(self.progress.step)
        return ["final_layernorm.weight"] if self.progress.step >= self._first_bad_step else []


def train_fake(
    engine: FakeEngine,
    *flags: str,
    save: Callable[[Path, object], None] = lambda *_: None,
    stop: Callable[[int], str | None] = lambda _: None,
) -> None:
    """Trains with an engine that only counts; `flags` on top of a tiny run of seven steps."""
    run = Case(more=("--train-iters", "7", "--eval-iters", "0", *flags)).resolve().run
    samples = PretrainingSamples(run, Datasets(_Samples()), ModelParallelUnit.offline())  # type: ignore[arg-type]
    reporter: Any = SimpleNamespace(step=lambda *_: None, restart_clock=lambda: None)
    train(run, engine, samples, reporter, save, stop)  # type: ignore[arg-type]


def test_equal_copies_are_checked_at_the_interval_and_at_the_end() -> None:
    engine = FakeEngine(first_bad_step=99)
    train_fake(engine, "--check-tp-replicas-interval", "3")
    assert engine.checked == [3, 6, 7]


def test_without_the_option_nothing_is_checked() -> None:
    engine = FakeEngine(first_bad_step=0)
    train_fake(engine)
    assert engine.checked == []


def test_different_copies_end_the_run_with_their_names_and_the_step() -> None:
    engine = FakeEngine(first_bad_step=4)
    with pytest.raises(TrainingError, match=r"step 6: copies of 1 parameters differ.*final_layernorm\.weight"):
        train_fake(engine, "--check-tp-replicas-interval", "3")
