from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data.data_path import BlendPart
from megatron_ds.data.sources import parse_sources
from megatron_ds.errors import ConfigError
from tests.data.conftest import write_documents


def names(**options: Any) -> list[str]:
    return [str(blend) for blend in parse_sources(DataConfig(**options))]


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        parse_sources(DataConfig(**options))
    return str(error.value)


def test_sources_data_path_is_cut_by_split() -> None:
    train, valid, test = parse_sources(DataConfig(data_path=["1", "a", "3", "b"], split="8,1,1"))
    assert [(part.prefix, part.weight, part.start, part.end) for part in valid.parts] == [
        ("a", 1, 0.8, 0.9),
        ("b", 3, 0.8, 0.9),
    ]
    assert train.parts[0].end == valid.parts[0].start
    assert (train.may_be_missing, valid.may_be_missing, test.may_be_missing) == (False, False, True)


def test_sources_share_of_zero_leaves_the_split_out() -> None:
    """D16: 100,0,0 has neither a validation nor a test set."""
    assert names(data_path=["a"], split="100,0,0") == ["train"]
    assert names(data_path=["a"], split="1,1") == ["train", "valid"]
    assert names(data_path=["a"], split="0,0,100") == ["train", "test"]


def test_sources_paths_of_their_own_take_all_documents() -> None:
    train, valid, test = parse_sources(
        DataConfig(train_data_path=["a"], valid_data_path=["1", "b", "1", "c"], test_data_path=["d"])
    )
    assert (str(train), str(valid), str(test)) == ("train", "valid", "test")
    assert train.parts == (BlendPart("a"),)
    assert [part.prefix for part in valid.parts] == ["b", "c"]
    assert not test.may_be_missing


def test_sources_named_sets_keep_their_names() -> None:
    options = {
        "train_weighted_split_paths": ["pile: 1 0:0.9 a, 2 0:0.5 b"],
        "valid_weighted_split_paths": ["code: 1 0.9:1 a", "web: 1 0.5:1 b"],
        "test_data_path": ["c"],
    }
    assert names(**options) == ["train pile", "valid code", "valid web", "test"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no training data is given"),
        ({"valid_data_path": ["a"]}, "no training data"),
        ({"data_path": ["a"], "valid_data_path": ["b"]}, "--data-path and --valid-data-path are both given"),
        (
            {"train_data_path": ["a"], "train_weighted_split_paths": ["x: 1 0:1 b"]},
            "--train-data-path and --train-weighted-split-paths are both given",
        ),
        ({"train_weighted_split_paths": ["x: 1 0:1 a", "y: 1 0:1 b"]}, "there is one set of training data"),
        (
            {"train_data_path": ["a"], "valid_weighted_split_paths": ["x: 1 0:1 b", "x: 1 0:1 c"]},
            "two sets named 'x'",
        ),
        ({"data_path": ["1", "a", "1", "b", "2", "a"]}, "a is given more than once"),
        ({"data_path": ["1", "a", "1", "./a"]}, "a is given more than once"),
        ({"train_weighted_split_paths": ["x: 1 0:0.6 a, 1 0.5:1 a"]}, "a is given more than once"),
    ],
)
def test_sources_that_contradict_each_other_refused(options: dict[str, Any], message: str) -> None:
    assert message in refusal(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"train_data_path": ["a"], "valid_data_path": ["a"]},
        {"train_data_path": ["a"], "test_data_path": ["./a"]},
        {"train_weighted_split_paths": ["x: 1 0:0.9 a"], "valid_weighted_split_paths": ["y: 1 0.85:1 a"]},
    ],
)
def test_sources_training_documents_in_another_split_refused(options: dict[str, Any]) -> None:
    """D15."""
    assert "documents of a are both training and" in refusal(**options)


def test_sources_report_everything_at_once() -> None:
    text = refusal(train_data_path=["0", "a"], valid_weighted_split_paths=["x"], test_data_path=["a", "b", "c"])
    assert "3 problems" in text


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_sources_linked_files_are_the_same_documents(tmp_path: Path, link: str) -> None:
    prefix = write_documents(tmp_path / "a", [[1, 2, 3]])
    for suffix in (".bin", ".idx"):
        getattr(tmp_path / f"b{suffix}", link)(f"{prefix}{suffix}")
    other = str(tmp_path / "b")
    assert "are both training and valid data" in refusal(train_data_path=[prefix], valid_data_path=[other])
    assert "is given more than once" in refusal(data_path=["1", prefix, "1", other])


def test_sources_next_to_no_weight_is_refused() -> None:
    assert "a has less than 1e-12 of the weights" in refusal(data_path=["1e-9", "a", "1e9", "b"])
