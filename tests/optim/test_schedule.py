"""The learning-rate schedule against values worked by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from megatron_ds.config.blocks import OptimizerConfig
from megatron_ds.optim.schedule import LearningRateSchedule


def schedule(train_iters: int = 10, **options: object) -> LearningRateSchedule:
    return LearningRateSchedule.from_config(OptimizerConfig.model_validate({"lr": 1.0, **options}), train_iters)


# Peak 1.0, min 0.2, 2 warm-up steps, the decay ends at step 10: 8 steps of decay.
BY_HAND = {
    "constant": {1: 0.5, 2: 1.0, 3: 1.0, 6: 1.0, 10: 1.0, 11: 1.0, 999: 1.0},
    "linear": {1: 0.5, 2: 1.0, 3: 0.9, 6: 0.6, 9: 0.3, 10: 0.2, 11: 0.2, 999: 0.2},
    # Step 4 is a quarter of the way: 0.2 + 0.8 x (1 + sqrt(1/2)) / 2 = 0.6 + 0.4 x 0.70710678 = 0.88284271.
    "cosine": {1: 0.5, 2: 1.0, 4: 0.88284271, 6: 0.6, 8: 0.31715729, 10: 0.2, 11: 0.2, 999: 0.2},
}


@pytest.mark.parametrize(
    ("style", "step", "expected"), [(style, *row) for style, rows in BY_HAND.items() for row in rows.items()]
)
def test_schedule_each_style_gives_the_values_worked_by_hand(style: str, step: int, expected: float) -> None:
    made = schedule(lr_decay_style=style, min_lr=0.2, lr_warmup_iters=2)
    assert made.style == style
    assert made.learning_rate(step) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("style", "first"), [("constant", 1.0), ("linear", 0.75), ("cosine", 0.85355339)])
def test_schedule_without_warmup_decays_from_the_first_step(style: str, first: float) -> None:
    made = schedule(train_iters=4, lr_decay_style=style)
    assert made.learning_rate(1) == pytest.approx(first, rel=1e-7)


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_schedule_warmup_as_long_as_decay_ends_at_peak_then_min(style: str) -> None:
    made = schedule(train_iters=4, lr_decay_style=style, lr_warmup_iters=4, min_lr=0.1)
    assert [made.learning_rate(step) for step in (1, 2, 3, 4, 5)] == [0.25, 0.5, 0.75, 1.0, 0.1]


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_schedule_single_step_run_uses_the_end_of_the_decay(style: str) -> None:
    assert schedule(train_iters=1, lr_decay_style=style, min_lr=0.3).learning_rate(1) == 0.3


def test_schedule_min_lr_is_reached_at_lr_decay_iters_before_the_run_ends() -> None:
    made = schedule(train_iters=100, lr_decay_iters=10, min_lr=0.2)
    assert made.decay_steps == 10
    assert made.learning_rate(9) > 0.2
    assert made.learning_rate(10) == made.learning_rate(100) == 0.2


def test_schedule_decay_longer_than_the_run_stops_part_of_the_way() -> None:
    assert schedule(train_iters=10, lr_decay_iters=20).learning_rate(10) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("fraction", "steps", "expected"),
    [
        (0.01, 1000, 10),
        (0.01, 150, 2),  # 1.5
        (0.01, 250, 3),  # 2.5, which Python's round() would take to 2
        (0.01, 149, 1),
        (0.01, 49, 0),
        (0.07, 100, 7),  # 7.000000000000001 as binary numbers
        (0.145, 100, 15),  # 14.499999999999998 as binary numbers
        (0.0, 1000, 0),
        (1.0, 1000, 1000),
        (1e-05, 300_000, 3),
    ],
)
def test_schedule_warmup_fraction_rounds_to_the_nearest_step(fraction: float, steps: int, expected: int) -> None:
    assert schedule(train_iters=steps, lr_warmup_fraction=fraction).warmup_steps == expected


def test_schedule_warmup_fraction_is_a_share_of_the_decay_not_of_the_run() -> None:
    assert schedule(train_iters=1000, lr_decay_iters=200, lr_warmup_fraction=0.1).warmup_steps == 20


def test_schedule_import_needs_no_torch() -> None:
    code = "import sys, megatron_ds.optim.schedule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
