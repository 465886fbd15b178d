from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data import SampleCounts, check_data
from megatron_ds.data.token_info import TokenInfo, info_path, write_token_info
from tests.data.conftest import write_documents


def check(*data_path: str, split: str = "1,0,0", valid: int = 0, vocab_size: int | None = None) -> list[str]:
    data = DataConfig(data_path=list(data_path), split=split)
    problems = check_data(data, seq_length=16, samples=SampleCounts(10, valid, 0), vocab_size=vocab_size)
    return [str(problem) for problem in problems]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return write_documents(tmp_path / "a_text_document", [list(range(20))] * 10)


def test_check_good_data_has_no_problem(tmp_path: Path, prefix: str) -> None:
    assert check(prefix, vocab_size=20) == []
    other = write_documents(tmp_path / "b", [list(range(20))] * 10)
    assert check("0.5", prefix, "0.5", other, split="8,1,1", valid=1) == []


def test_check_missing_files_are_named(tmp_path: Path, prefix: str) -> None:
    (problem,) = check(str(tmp_path / "b"))
    assert f"data file not found: {tmp_path / 'b.bin'} and {tmp_path / 'b.idx'}" in problem
    Path(f"{prefix}.idx").unlink()
    (problem,) = check(prefix)
    assert problem.startswith(f"data file not found: {prefix}.idx\n")


def test_check_prefix_without_key_suggests_the_document(tmp_path: Path, prefix: str) -> None:
    (problem,) = check(str(tmp_path / "a"))
    assert f"did you mean {prefix}?" in problem


def test_check_prefix_with_suffix_says_so(prefix: str) -> None:
    (problem,) = check(f"{prefix}.bin")
    assert f"give the prefix without the suffix: {prefix}" in problem


def test_check_truncated_file_is_named(prefix: str) -> None:
    Path(f"{prefix}.bin").write_bytes(b"1234")
    (problem,) = check(prefix)
    assert f"{prefix}.bin is truncated: 4 bytes, expected 800" in problem


def test_check_damaged_index_is_named(prefix: str) -> None:
    idx = Path(f"{prefix}.idx")
    content = bytearray(idx.read_bytes())
    content[-16:-8] = (77).to_bytes(8, "little")
    idx.write_bytes(content)
    (problem,) = check(prefix)
    assert f"{idx} has document 8 from sequence 8 to 77; it has 10 sequences" in problem


def test_check_corpus_shorter_than_a_sample_names_both_numbers(tmp_path: Path) -> None:
    (problem,) = check(write_documents(tmp_path / "small", [[1, 2, 3, 4, 5]]))
    assert "dataset has 5 tokens, needs at least 17" in problem


def test_check_validation_without_documents_names_the_ways_out(prefix: str) -> None:
    """D16: an error only when validation is asked for."""
    assert check(prefix, split="99.9,0.1,0") == []
    (problem,) = check(prefix, split="99.9,0.1,0", valid=4)
    assert "the valid set has none of the 10 documents" in problem
    assert "--eval-iters 0" in problem


def test_check_validation_without_a_share_is_no_problem(prefix: str) -> None:
    assert check(prefix, split="100,0,0", valid=4) == []


def test_check_training_without_documents_refused(prefix: str) -> None:
    (problem,) = check(prefix, split="0,0,100")
    assert "the train set has none of the 10 documents" in problem


@pytest.mark.parametrize("split", ["1,1", "969, 30, 1"])
def test_check_two_numbers_or_spaces_are_legal(tmp_path: Path, split: str) -> None:
    prefix = write_documents(tmp_path / "many", [list(range(20))] * 100)
    assert check(prefix, split=split, valid=4) == []


def test_check_id_beyond_the_vocabulary_is_named(prefix: str) -> None:
    (problem,) = check(prefix, vocab_size=19)
    assert "has token id 19, outside of the vocabulary of 19 ids" in problem


def test_check_id_below_zero_is_named(tmp_path: Path) -> None:
    documents = [[-5, *range(20)]] * 10
    (problem,) = check(write_documents(tmp_path / "negative", documents), vocab_size=20)
    assert "has token id -5, outside of the vocabulary of 20 ids" in problem


def test_check_reports_everything_at_once(tmp_path: Path, prefix: str) -> None:
    problems = check("0", prefix, "1", "x", split="a")
    assert len(problems) == 2
    problems = check("1", str(tmp_path / "x"), "1", str(tmp_path / "y"), "1", prefix, split="0,1", valid=1)
    assert len(problems) == 3


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ([[*range(1, 30)]] * 4, False),
        ([[*range(1, 30)], [*range(1, 30), 0], [*range(1, 30)]], True),
        ([[], [*range(1, 30), 0]], True),
        ([[1, 0, *range(2, 30)]], True),
    ],
)
def test_check_data_without_a_single_eod_is_refused_where_documents_matter(
    documents: list[list[int]], found: bool, tmp_path: Path
) -> None:
    prefix = write_documents(tmp_path / "a", documents)
    plain = DataConfig(data_path=[prefix], split="1,0,0", eod_id=0)
    needs = {"seq_length": 8, "samples": SampleCounts(1, 0, 0)}
    assert check_data(plain, **needs) == []
    problems = check_data(plain.model_copy(update={"reset_attention_mask": True, "eod_mask_loss": True}), **needs)
    assert len(problems) == (0 if found else 1)
    for problem in problems:
        assert "a.bin has no end-of-document token (id 0)" in problem.message
        assert problem.advice.startswith("preprocess with --append-eod, correct --eod-id, or leave out")


def test_check_sees_an_eod_beyond_the_tokens_that_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_ds.data.check.TOKENS_LOOKED_AT", 10)
    prefix = write_documents(tmp_path / "a", [[*range(1, 30), 0]])
    data = DataConfig(data_path=[prefix], split="1,0,0", eod_id=0, eod_mask_loss=True)
    assert check_data(data, seq_length=8, samples=SampleCounts(1, 0, 0)) == []


def test_check_another_eod_than_the_data_was_made_with_is_refused(tmp_path: Path) -> None:
    """Not every id that is in the data ends documents."""
    prefix = write_documents(tmp_path / "a", [[*range(1, 30), 0]] * 3)
    write_token_info(info_path(prefix), TokenInfo("X", "f", 30, 0, True, ("text",), False, None, False, False, 3, 90))
    data = DataConfig(data_path=[prefix], split="1,0,0", eod_id=7, reset_position_ids=True)
    (problem,) = check_data(data, seq_length=8, samples=SampleCounts(1, 0, 0))
    assert "eod_id is 7" in problem.message
    assert "preprocessed with 0 for that" in problem.message
