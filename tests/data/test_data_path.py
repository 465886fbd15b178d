from __future__ import annotations

from fractions import Fraction

import pytest

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data.data_path import SPLITS, BlendPart, parse_data_path, parse_split, parse_weighted_split
from megatron_ds.data.sources import parse_sources
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
    assert list(parse_data_path(words)) == [BlendPart(prefix, Fraction(weight)) for prefix, weight in expected]


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
        (["1e-400000000", "a", "1", "b"], "weight '1e-400000000' of a"),
        (["1e300", "a", "1", "b"], "weight '1e300' of a"),
        (["0.3 a 0.7 b"], "one word with spaces"),
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


@pytest.mark.parametrize("text", ["", "a,b", "1,,1", "1,1,1,1", "-1,2,1", "nan,1", "inf,1,1", "0,0,0", "1e308,1e308,0"])
def test_parse_split_malformed_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--split"):
        parse_split(text)


def test_parse_weighted_split_reads_bloom_s_grammar() -> None:
    name, parts = parse_weighted_split("code: 0.3 0:0.6 data/a, 7e-1 0.25:1 data/b", "--valid-weighted-split-paths")
    assert name == "code"
    assert parts == (
        BlendPart("data/a", Fraction(3, 10), 0.0, 0.6),
        BlendPart("data/b", Fraction(7, 10), 0.25, 1.0),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0:1 a", "does not begin with a name"),
        (": 1 0:1 a", "does not begin with a name"),
        ("x", "does not begin with a name"),
        ("x: ", "not three words"),
        ("x: 1 0:1 a,", "not three words"),
        ("x: 1 a", "not three words"),
        ("x: 0 0:1 a", "weight '0'"),
        ("x: nan 0:1 a", "weight 'nan'"),
        ("x: 1 0-1 a", "range '0-1'"),
        ("x: 1 0.5:0.5 a", "range '0.5:0.5'"),
        ("x: 1 0:1.5 a", "range '0:1.5'"),
        ("x: 1 nan:1 a", "range 'nan:1'"),
    ],
)
def test_parse_weighted_split_malformed_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_weighted_split(text, "--valid-weighted-split-paths")


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
def test_documents_of_a_split_are_rounded_cumulative_shares(
    split: tuple[float, float, float], num_documents: int, expected: list[tuple[int, int]]
) -> None:
    data = DataConfig(data_path=["a"], split=",".join(map(str, split)))
    ranges = {blend.split: blend.parts[0].documents(num_documents) for blend in parse_sources(data)}
    assert [ranges.get(name, (end, end)) for name, (_, end) in zip(SPLITS, expected, strict=True)] == expected
