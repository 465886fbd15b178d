from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from megatron_ds.data.blend_order import BlendOrder
from megatron_ds.data.blended_dataset import BlendedDataset


def fractions(*weights: float | str) -> list[Fraction]:
    return [Fraction(str(weight)) for weight in weights]


def largest_deviation(weights: list[Fraction], sets: np.ndarray) -> float:
    """How far any prefix of the draws is from weight x its length."""
    shares = [float(weight / sum(weights)) for weight in weights]
    draws = np.arange(1, len(sets) + 1)
    return max(np.abs(np.cumsum(sets == number) - share * draws).max() for number, share in enumerate(shares))


def earliest_window_end(weights: list[Fraction], num_draws: int) -> list[int]:
    """The rule itself, in exact numbers: the set whose window ends first, of those whose window has begun."""
    shares = [weight / sum(weights) for weight in weights]
    counts, draws = [0] * len(weights), []
    for place in range(num_draws):
        begun = [number for number, share in enumerate(shares) if counts[number] < share * (place + 1)]
        draws.append(min(begun, key=lambda number: ((counts[number] + 1) / shares[number], number)))
        counts[draws[-1]] += 1
    return draws


def test_blend_of_common_sets_starts_as_the_rule_says() -> None:
    weights = fractions("0.3719", "0.2113", "0.4201", "1.1003")
    assert BlendOrder(weights).sets(2000).tolist() == earliest_window_end(weights, 2000)


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
        fractions(*np.exp(3 * np.random.default_rng(3).normal(size=12))),
        [Fraction(1)] * 24,
        [Fraction(1)] * 400,
        [Fraction(1, number**2) for number in range(1, 61)],
        [Fraction(1)] * 3 + [Fraction(1, 10**5)] * 7,
        [Fraction(1, 10**9)] * 9 + [Fraction(1)],
    ],
)
def test_blend_every_prefix_is_within_one_of_its_share(weights: list[Fraction]) -> None:
    """D8."""
    order = BlendOrder(weights)
    sets = order.sets(30_000)
    assert len(sets) == 30_000
    # Where a window ends on a whole number, the last of 32 binary digits decides: exactly 1 is possible.
    assert largest_deviation(weights, sets) < 1 + 1e-6
    for num_draws in (0, 1, 4095, 4096, 4097, 30_000):
        assert order.counts(num_draws) == np.bincount(sets[:num_draws], minlength=len(weights)).tolist()


def test_blend_draws_each_set_in_order_without_gaps() -> None:
    order = BlendOrder(fractions(2, "0.5", 1))
    drawn: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number in range(100):
        chosen, sample = order.locate(number)
        drawn[chosen].append(sample)
    assert all(samples == list(range(len(samples))) for samples in drawn.values())
    assert [len(samples) for samples in drawn.values()] == order.counts(100)


def test_blend_depends_on_ratios_only() -> None:
    """D9: weights need not add up to 1."""
    orders = [BlendOrder(fractions(*pair)) for pair in ((1, 2), (10, 20), ("0.5", "1.0"))]
    places = [[order.locate(number) for number in range(50)] for order in orders]
    assert places[0] == places[1] == places[2]
    near = BlendOrder(fractions(".333", ".667"))
    assert [near.locate(number) for number in range(50)] == places[0]


def test_blend_draws_are_the_same_however_they_are_asked_for() -> None:
    weights = fractions("0.123456789", "0.4", "0.31", "0.0001", "0.00003")
    sets = BlendOrder(weights).sets(300_000)
    one_at_a_time = BlendOrder(weights, stretches_kept=1)
    # Backwards, and over the border of two stretches, of which one is kept.
    for number in (299_999, 131_073, 131_072, 131_071, 4096, 4095, 1, 0):
        expected = int(sets[number]), int((sets[:number] == sets[number]).sum())
        assert one_at_a_time.locate(number) == expected


def test_blend_of_many_rare_sets_far_into_a_run() -> None:
    weights = [Fraction(1, number**2) for number in range(1, 61)]
    order = BlendOrder(weights)
    counts = order.counts(5 * 10**7)
    shares = [float(weight / sum(weights)) for weight in weights]
    assert all(abs(count - share * 5e7) < 1.01 for count, share in zip(counts, shares, strict=True))
    number, sample = order.locate(5 * 10**7)
    assert sample == counts[number]


def test_blend_far_into_a_run_needs_nothing_before_it() -> None:
    """D8: the counts of a hundred million draws, and of a hundred billion."""
    weights = fractions(*np.random.default_rng(3).random(10))
    shares = [float(weight / sum(weights)) for weight in weights]
    for num_draws in (10**8, 10**11):
        counts = BlendOrder(weights).counts(num_draws)
        assert sum(counts) == num_draws
        assert all(abs(count - share * num_draws) < 1.001 for count, share in zip(counts, shares, strict=True))


def test_blended_dataset_gives_every_index_and_ends() -> None:
    order = BlendOrder(fractions("0.3", "0.7"))
    sets = [[np.array([number, sample]) for sample in range(count)] for number, count in enumerate(order.counts(10))]
    blended = BlendedDataset(sets, order, 10)
    assert len(blended) == 10
    assert [blended[number].tolist() for number in range(10)] == [list(order.locate(number)) for number in range(10)]
    with pytest.raises(IndexError):
        blended[10]
