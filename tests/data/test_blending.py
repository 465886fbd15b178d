from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

from megatron_ds.data.blending import BlendedDataset, blend_order


def fractions(*weights: float | str) -> list[Fraction]:
    return [Fraction(str(weight)) for weight in weights]


def largest_deviation(weights: list[Fraction], sets: np.ndarray) -> float:
    """How far any prefix of the draws is from weight x its length."""
    shares = [float(weight / sum(weights)) for weight in weights]
    draws = np.arange(1, len(sets) + 1)
    return max(np.abs(np.cumsum(sets == number) - share * draws).max() for number, share in enumerate(shares))


@pytest.mark.parametrize(
    "weights",
    [
        fractions(1),
        fractions(1, 1, 1),
        fractions("0.3", "0.7"),
        fractions("0.001", "0.998", "0.001"),
        fractions("1e-9", "1"),
        fractions(1, 1, 2, 3, 5, 8, 13, 21),
        fractions(*np.random.default_rng(0).random(3)),
        fractions(*np.random.default_rng(1).random(10)),
        fractions(*np.random.default_rng(2).random(30) ** 6),
        [Fraction(1)] * 24,
    ],
)
def test_blend_every_prefix_is_within_one_of_its_share(weights: list[Fraction]) -> None:
    """D8."""
    order = blend_order(weights, 30_000)
    sets = np.array([order.locate(number)[0] for number in range(30_000)])
    assert largest_deviation(weights, sets) < 1
    assert order.counts(30_000) == np.bincount(sets, minlength=len(weights)).tolist()


def test_blend_draws_each_set_in_order_without_gaps() -> None:
    order = blend_order(fractions(2, "0.5", 1), 100)
    drawn: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number in range(100):
        chosen, sample = order.locate(number)
        drawn[chosen].append(sample)
    assert all(samples == list(range(len(samples))) for samples in drawn.values())
    assert [len(samples) for samples in drawn.values()] == order.counts(100)


def test_blend_depends_on_ratios_only() -> None:
    """D9: weights need not add up to 1."""
    orders = [blend_order(fractions(*pair), 50) for pair in ((1, 2), (10, 20), ("0.5", "1.0"))]
    places = [[order.locate(number) for number in range(50)] for order in orders]
    assert places[0] == places[1] == places[2]
    near = blend_order(fractions(".333", ".667"), 50)
    assert [near.locate(number) for number in range(50)] == places[0]


def test_blend_order_does_not_depend_on_the_number_of_draws() -> None:
    weights = fractions("0.123456789", "0.4", "0.31")
    short, long = blend_order(weights, 100), blend_order(weights, 5000)
    assert [short.locate(number) for number in range(100)] == [long.locate(number) for number in range(100)]


def test_blend_of_a_hundred_million_draws_with_a_short_period_is_small() -> None:
    order = blend_order(fractions("0.3", "0.7"), 10**8)
    assert len(order.sets) == 10
    assert order.counts(10**8) == [3 * 10**7, 7 * 10**7]
    assert order.locate(10**8 - 1)[1] < 7 * 10**7


def test_blend_of_a_million_draws_takes_less_than_a_second() -> None:
    start = time.process_time()
    order = blend_order(fractions(*np.random.default_rng(3).random(5)), 1_000_000)
    seconds = time.process_time() - start
    assert len(order.sets) == 1_000_000
    # Measured 0.9 s at most; the limit leaves room for a slower machine.
    assert seconds < 3


def test_blended_dataset_gives_every_index_and_ends() -> None:
    order = blend_order(fractions("0.3", "0.7"), 10)
    sets = [[np.array([number, sample]) for sample in range(count)] for number, count in enumerate(order.counts(10))]
    blended = BlendedDataset(sets, order, 10)
    assert len(blended) == 10
    assert [blended[number].tolist() for number in range(10)] == [list(order.locate(number)) for number in range(10)]
    with pytest.raises(IndexError):
        blended[10]
