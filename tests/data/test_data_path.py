from __future__ import annotations

from fractions import Fraction

import pytest

from megatron_ds.data.data_path import WeightedPrefix, document_ranges, parse_data_path, parse_split
from megatron_ds.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a"], [("a", 1)]),
        (["1"], [("1", 1)]),
        (["1", "2"], [("2", 1)]),
        (["0.3", "a", "7e-1", "b"], [("a", Fraction(3, 10)), ("b", Fraction(7, 10))]),
    ],
)
def test_parse_data_path_reads_prefixes_and_weights(words: list[str], expected: list[tuple[str, Fraction]]) -> None:
    assert list(parse_data_path(words)) == [WeightedPrefix(prefix, Fraction(weight)) for prefix, weight in expected]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no training data"),
        (["1", "a", "b"], "3 words, which do not pair up"),
        (["a", "b"], "weight 'a' of b is not a number above 0"),
        (["1", "a", "0", "b"], "weight '0' of b"),
        (["-1", "a", "1", "b"], "weight '-1' of a"),
        (["nan", "a", "1", "b"], "weight 'nan' of a"),
        (["inf", "a", "1", "b"], "weight 'inf' of a"),
        (["1", "a", "1", "b", "2", "a"], "a is given more than once"),
        (["1", "a", "1", "./a"], "a is given more than once"),
    ],
)
def test_parse_data_path_malformed_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_data_path(words)


def test_parse_data_path_reports_every_bad_weight() -> None:
    with pytest.raises(ConfigError) as error:
        parse_data_path(["0", "a", "-1", "b"])
    assert len(error.value.problems) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("969,30,1", (969, 30, 1)),
        ("969, 30, 1", (969, 30, 1)),
        ("90/5/5", (90, 5, 5)),
        ("1,1", (1, 1, 0)),
        ("100", (100, 0, 0)),
        ("100,0,0", (100, 0, 0)),
        ("0,0,100", (0, 0, 100)),
        ("99.9,0.1,0", (99.9, 0.1, 0)),
    ],
)
def test_parse_split_fills_up_with_zeros(text: str, expected: tuple[float, float, float]) -> None:
    assert parse_split(text) == expected


@pytest.mark.parametrize("text", ["", "a,b", "1,,1", "1,1,1,1", "-1,2,1", "nan,1", "inf,1,1", "0,0,0"])
def test_parse_split_malformed_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--split"):
        parse_split(text)


@pytest.mark.parametrize(
    ("split", "num_documents", "expected"),
    [
        ((969, 30, 1), 1000, [(0, 969), (969, 999), (999, 1000)]),
        ((969, 30, 1), 10, [(0, 10), (10, 10), (10, 10)]),
        ((1, 1, 0), 7, [(0, 4), (4, 7), (7, 7)]),
        ((99.9, 0.1, 0), 10, [(0, 10), (10, 10), (10, 10)]),
        ((0, 0, 100), 5, [(0, 0), (0, 0), (0, 5)]),
        ((0.1, 0.2, 0.7), 10, [(0, 1), (1, 3), (3, 10)]),
    ],
)
def test_document_ranges_are_rounded_cumulative_shares(
    split: tuple[float, float, float], num_documents: int, expected: list[tuple[int, int]]
) -> None:
    assert list(document_ranges(split, num_documents).values()) == expected
