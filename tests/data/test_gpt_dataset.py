from __future__ import annotations

import logging
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data import SampleCounts, build_gpt_datasets
from megatron_ds.data import gpt_build as build_module
from megatron_ds.errors import DataError
from tests.data.conftest import build, numbered_documents, rows, write_documents


def test_dataset_one_document_inputs_cover_each_token_once(tmp_path: Path) -> None:
    """D13: 160 tokens are 10 samples of 16 + 1 tokens; the last of each is a label only."""
    prefix = write_documents(tmp_path / "a", numbered_documents([160]))
    samples = rows(build(prefix, train=10).train)
    assert {len(sample) for sample in samples} == {17}
    assert sorted(token for sample in samples for token in sample[:-1]) == list(range(160))
    assert all(np.diff(sample[:16]).tolist() == [1] * 15 for sample in samples)
    assert all(sample[16] == (sample[15] + 1) % 160 for sample in samples)


def test_dataset_thirty_samples_of_ten_documents_are_three_permutations(tmp_path: Path) -> None:
    """D11: every document three times, and once in each block of ten."""
    prefix = write_documents(tmp_path / "a", numbered_documents([16] * 10))
    first_tokens = [sample[0] for sample in rows(build(prefix, train=30).train)]
    blocks = [first_tokens[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(block) == [16 * number for number in range(10)] for block in blocks)
    assert blocks[0] != blocks[1] != blocks[2]


def test_dataset_samples_follow_the_stream_of_documents(tmp_path: Path) -> None:
    """Every sample is a stretch of whole documents laid end to end, whatever their lengths."""
    documents = numbered_documents([5, 1, 0, 40, 7, 3, 2, 30])
    prefix = write_documents(tmp_path / "a", documents)
    follows = {a: b for document in documents for a, b in pairwise(document)}
    starts = {document[0] for document in documents if document}
    for sample in rows(build(prefix, train=40).train):
        for token, following in pairwise(sample):
            assert follows.get(token) == following or (token not in follows and following in starts)


def test_dataset_order_does_not_depend_on_the_number_of_samples(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([13] * 9))
    longer = rows(build(prefix, train=60).train)
    for count in (1, 7, 8, 30):
        assert rows(build(prefix, train=count).train) == longer[:count]


def test_dataset_splits_share_no_document(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([20] * 10))
    datasets = build(prefix, split="6,2,2", train=30, valid=20, test=20)
    used = [
        {token // 20 for sample in rows(each) for token in sample}
        for each in (datasets.train, datasets.valid["all"], datasets.test["all"])
    ]
    assert used == [set(range(6)), {6, 7}, {8, 9}]


def test_dataset_split_without_a_share_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D16: 100,0,0 trains without a validation set."""
    prefix = write_documents(tmp_path / "a", numbered_documents([20]))
    with caplog.at_level(logging.INFO, "megatron_ds"):
        datasets = build(prefix, split="100,0,0", train=1, valid=4, test=4)
    assert (datasets.valid, datasets.test) == ({}, {})
    assert "there is no validation set: nothing is evaluated during training" in caplog.messages


def test_dataset_test_documents_without_a_sample_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([20] * 10))
    with caplog.at_level(logging.INFO, "megatron_ds"):
        datasets = build(prefix, split="8,2,0.1", train=1, valid=1, test=1)
    assert list(datasets.valid) == ["all"]
    assert datasets.test == {}
    assert any(message.startswith("there is no test set: ") for message in caplog.messages)


def test_dataset_named_sets_are_built_by_name(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([20] * 10))
    data = DataConfig(
        train_weighted_split_paths=[f"all_of_it: 1 0:0.6 {prefix}"],
        valid_weighted_split_paths=[f"first: 1 0.6:0.8 {prefix}", f"second: 1 0.8:1 {prefix}"],
    )
    datasets = build_gpt_datasets(
        data, seq_length=16, seed=1, samples=SampleCounts(10, 4, 4), is_builder=True, wait=lambda: None
    )
    used = {name: {token // 20 for sample in rows(each) for token in sample} for name, each in datasets.valid.items()}
    assert used == {"first": {6, 7}, "second": {8, 9}}
    assert {token // 20 for sample in rows(datasets.train) for token in sample} == set(range(6))
    assert datasets.test == {}


def test_dataset_too_small_names_both_numbers(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[1, 2, 3, 4, 5]])
    with pytest.raises(DataError, match="dataset has 5 tokens, needs at least 17"):
        build(prefix, train=1)


def test_dataset_exactly_one_sample_is_enough(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([17]))
    assert rows(build(prefix, train=1).train) == [list(range(17))]


@pytest.mark.parametrize(
    "weights", [("0.001", "0.999", "0.5"), ("1", "1", "1"), ("0.3", "0.7", "1e-6"), ("1000", "1", "1")]
)
def test_blend_of_tiny_and_large_sets_gives_every_sample(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """D8: sets of 3, 7 and 1000 samples; no IndexError, the length asked for, counts within 1 of weight x N."""
    words: list[str] = []
    for number, (weight, size) in enumerate(zip(weights, (3, 7, 1000), strict=True)):
        words += [weight, write_documents(tmp_path / str(number), [[number] * 16] * size)]
    for num_samples in (1, 10, 1500):
        samples = rows(build(*words, train=num_samples).train)
        assert len(samples) == num_samples
        counts = np.bincount([sample[0] for sample in samples], minlength=3)
        shares = np.array([float(weight) for weight in weights])
        assert np.abs(counts - num_samples * shares / shares.sum()).max() < 1


def test_build_logs_samples_share_and_epochs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a = write_documents(tmp_path / "a", numbered_documents([160]))
    b = write_documents(tmp_path / "b", numbered_documents([320]))
    with caplog.at_level(logging.INFO, "megatron_ds"):
        build("1", a, "3", b, train=40)
    assert [message.split()[:6] for message in caplog.messages[:2]] == [
        ["building", "the", "sample", "index", "of", prefix] for prefix in (a, b)
    ]
    lines = caplog.messages[2:]
    assert [line.split() for line in lines] == [
        ["set", "documents", "tokens", "weight", "samples", "share", "epochs", "data"],
        ["train", "1", "160", "25.00%", "10", "25.00%", "1.00", a],
        ["train", "1", "320", "75.00%", "30", "75.00%", "1.50", b],
    ]
    assert lines[1].index("25.00%") == lines[2].index("75.00%")


def test_cyclic_order_has_every_sample_of_the_run_once(tmp_path: Path) -> None:
    a = write_documents(tmp_path / "a", numbered_documents([160]))
    b = write_documents(tmp_path / "b", [[token + 1000 for token in range(160)]])
    single = rows(build("1", a, "3", b, train=40).train)
    cyclic = rows(build("1", a, "3", b, train=40, dataloader_type="cyclic").train)
    assert sorted(single) == sorted(cyclic)
    assert single != cyclic
    assert cyclic == rows(build("1", a, "3", b, train=40, dataloader_type="cyclic").train)
    assert cyclic != rows(build("1", a, "3", b, train=40, dataloader_type="cyclic", seed=1).train)


def cache_files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_cache_lies_beside_the_data_and_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([160]))
    first = rows(build(prefix, train=10).train)
    assert len(cache_files(tmp_path / "a_cache")) == 3
    monkeypatch.setattr(build_module, "build_gpt_index", lambda *args, **options: pytest.fail("built again"))
    assert rows(build(prefix, train=10).train) == first


def test_cache_of_another_split_seed_or_length_is_not_reused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([20] * 20))
    cache = tmp_path / "elsewhere"
    seen: set[str] = set()
    for options in ({}, {"split": "90,5,5"}, {"split": "50,25,25"}, {"seed": 1}, {"seq_length": 8}, {"train": 90}):
        build(prefix, cache=cache, **{"train": 10, **options})
        assert len(cache_files(cache) - seen) == 3
        seen = cache_files(cache)
    assert not (tmp_path / "a_cache").exists()


def test_cache_of_data_that_was_preprocessed_again_is_not_reused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([20] * 10))
    build(prefix, train=10)
    os.utime(f"{prefix}.bin", ns=(1, 1))
    build(prefix, train=10)
    write_documents(tmp_path / "a", numbered_documents([50, 10] * 5))
    assert {token for sample in rows(build(prefix, train=30).train) for token in sample} == set(range(300))
    assert len(cache_files(tmp_path / "a_cache")) == 9


def test_cache_broken_file_is_built_again(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([160]))
    first = rows(build(prefix, train=10).train)
    for path in (tmp_path / "a_cache").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    assert rows(build(prefix, train=10).train) == first


@pytest.mark.parametrize("part", ["documents", "samples"])
@pytest.mark.parametrize("damage", ["zeros", "ones", "shorter", "float", "zip", "other"])
def test_cache_damaged_array_is_built_again(tmp_path: Path, part: str, damage: str) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([40] * 20))
    expected = rows(build(prefix, train=10).train)
    (path,) = (tmp_path / "a_cache").glob(f"*_{part}.npy")
    array = np.load(path)
    if damage == "zip":
        np.savez(path.with_suffix(""), array)
        path.with_suffix(".npz").rename(path)
    elif damage == "other":
        (other,) = (each for each in (tmp_path / "a_cache").glob("*.npy") if each != path)
        path.write_bytes(other.read_bytes())
    else:
        changed = {"zeros": array * 0, "ones": array * 0 - 1, "shorter": array[:-1], "float": array.astype(float)}
        np.save(path, changed[damage])
    assert rows(build(prefix, train=10).train) == expected


def test_cache_folder_that_can_not_be_made_names_the_option(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([160]))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="--data-cache-path"):
        build(prefix, train=10, cache=tmp_path / "file" / "folder")


def test_build_without_the_builder_waits_then_maps(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([160]))
    with pytest.raises(DataError, match="is not in"):
        build(prefix, train=10, is_builder=False)
    assert not (tmp_path / "a_cache").exists()
    expected = rows(build(prefix, train=10).train)
    assert rows(build(prefix, train=10, is_builder=False).train) == expected
