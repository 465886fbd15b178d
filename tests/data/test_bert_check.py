from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_ds.config import resolve
from megatron_ds.config.blocks import DataConfig, RunConfig
from megatron_ds.data import SampleCounts, TrainingOrder, check_bert_data
from megatron_ds.errors import DataError
from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from tests.config.helpers import environ, words
from tests.data.bert import SAMPLING, build_bert, numbered_sentences, write_sentences
from tests.data.test_preprocess import preprocess_files, write_lines

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "The", "dog", "ran"]


@pytest.fixture
def tokenizer_options(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    return {"tokenizer_type": "BertWordPieceCase", "vocab_file": str(path)}


@pytest.fixture
def tokenizer(tokenizer_options: dict[str, str]) -> Tokenizer:
    return build_tokenizer(DataConfig(**tokenizer_options))


def check(
    prefix: str,
    tokenizer: Tokenizer | None,
    split: str = "969,30,1",
    valid: int = 4,
    vocab_size: int = 4000,
    **sampling: Any,
) -> list[str]:
    problems = check_bert_data(
        DataConfig(data_path=[prefix], split=split),
        sampling=replace(SAMPLING, **sampling),
        samples=SampleCounts(10, valid, 1),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
    )
    return [str(problem) for problem in problems]


def test_check_bert_good_data_has_no_problem(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 20))
    assert check(prefix, tokenizer) == []


def test_check_bert_documents_of_one_sentence_name_both_numbers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """D2: said once for the file, not for each split; without the head such documents are good."""
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5], [0, 6]] * 10))
    (problem,) = check(prefix, tokenizer)
    assert f"0 usable of 20 documents of {prefix}" in problem
    assert "--bert-no-binary-head" in problem
    with pytest.raises(DataError, match="0 usable of 20 documents"):
        build_bert(prefix, train=1)
    assert check(prefix, tokenizer, binary_head=False) == []
    assert len(list(build_bert(prefix, train=30, binary_head=False).train)) == 30


def test_check_bert_split_without_usable_documents_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 15 + [[5]] * 5))
    (problem,) = check(prefix, tokenizer, split="3,1,0")
    assert f"0 usable of 5 documents in the valid set (0.75:1 of {prefix})" in problem
    assert "--eval-iters 0" in problem
    assert check(prefix, tokenizer, split="3,1,0", valid=0) == []
    # Test documents that --split sets aside may be missing.
    assert check(prefix, tokenizer, split="3,0,1") == []


def test_check_bert_split_without_documents_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 20))
    (problem,) = check(prefix, tokenizer, split="99.9,0.1,0")
    assert "the valid set has none of the 20 documents" in problem


def test_check_bert_documents_without_tokens_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prefix = write_sentences(tmp_path / "a", [[[]], [[], []]])
    (problem,) = check(prefix, tokenizer, split="1,0,0", binary_head=False)
    assert "0 usable of 2 documents" in problem and "none has a token" in problem


def test_check_bert_files_and_tokenizer_are_reported_together(tmp_path: Path) -> None:
    missing, bytes_only = check(str(tmp_path / "a"), build_tokenizer(DataConfig(tokenizer_type="ByteTokenizer")))
    assert "has no [CLS] and no [SEP] and no [MASK] and no [PAD]" in missing
    assert "data file not found" in bytes_only
    (problem,) = check(write_sentences(tmp_path / "b", numbered_sentences([[5, 5]] * 20)), None, split="1,0,0")
    assert "a tokenizer's special tokens, and none is given" in problem


def test_check_bert_whole_words_need_marked_pieces(tmp_path: Path) -> None:
    from tests.tokenizers.conftest import byte_level_bpe

    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 40))
    byte_level_bpe(["[PAD]", "[CLS]", "[SEP]", "[MASK]"]).save(str(tmp_path / "tokenizer.json"))
    options = DataConfig(tokenizer_type="HFTokenizer", tokenizer_name_or_path=str(tmp_path))
    tokenizer = build_tokenizer(options)
    for mask_type in ("word", "ngram"):
        (problem,) = check(prefix, tokenizer, mask_type=mask_type)
        assert f"bert_mask_type {mask_type} masks whole words" in problem
        assert "--bert-mask-type token" in problem
    assert check(prefix, tokenizer, mask_type="token") == []


@pytest.mark.parametrize(("binary_head", "least"), [(True, 5), (False, 4)])
def test_check_bert_seq_length_without_room_names_the_least(
    tmp_path: Path, tokenizer: Tokenizer, binary_head: bool, least: int
) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 40))
    (problem,) = check(prefix, tokenizer, seq_length=least - 1, binary_head=binary_head)
    assert f"use a --seq-length of {least} or more" in problem
    assert check(prefix, tokenizer, seq_length=least, binary_head=binary_head) == []
    samples = list(build_bert(prefix, train=20, seq_length=least, binary_head=binary_head).train)
    assert all(sample.padding_mask.all() and 1 <= sample.loss_mask.sum() <= 2 for sample in samples)


def test_check_bert_data_of_another_vocabulary_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 40))
    (problem,) = check(prefix, tokenizer, vocab_size=12)
    assert "outside of the vocabulary of 12 ids" in problem


def test_check_bert_preprocessed_text_with_and_without_sentences(
    tmp_path: Path, tokenizer: Tokenizer, tokenizer_options: dict[str, str]
) -> None:
    """Documents of one sequence each are no pairs of segments; longer than a sample, they would be used in part."""
    texts = ["The dog ran. " * 8] * 10 + ["The dog. The ran."] * 10
    source = write_lines(tmp_path / "a.jsonl", texts)
    options = ("--vocab-file", tokenizer_options["vocab_file"])
    preprocess_files(source, tmp_path / "a", *options, "--split-sentences", tokenizer="BertWordPieceCase")
    preprocess_files(source, tmp_path / "a", *options, tokenizer="BertWordPieceCase")
    for binary_head in (True, False):
        assert check(f"{tmp_path}/a_text_sentence", tokenizer, binary_head=binary_head) == []
    (problem,) = check(f"{tmp_path}/a_text_document", tokenizer)
    assert "0 usable of 20 documents" in problem and "--split-sentences" in problem
    (problem,) = check(f"{tmp_path}/a_text_document", tokenizer, binary_head=False)
    assert "is not split into sentences, and 10 of 20 documents have more than the 30 tokens of a sample" in problem
    assert check(f"{tmp_path}/a_text_document", tokenizer, binary_head=False, seq_length=42) == []


def run_of(prefix: str, *flags: str) -> RunConfig:
    return resolve(words("--data-path", prefix, *flags), environ(), "test").run


def bert_order(prefix: str, *flags: str) -> TrainingOrder:
    return TrainingOrder.of(run_of(prefix, "--model-type", "bert", *flags))


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        (("--mask-prob", "0.2"), "mask_prob: 0.15 -> 0.2"),
        (("--masked-lm-prob", "0.2"), "mask_prob: 0.15 -> 0.2"),
        (("--short-seq-prob", "0"), "short_seq_prob: 0.1 -> 0.0"),
        (("--bert-mask-type", "word"), "bert_mask_type: ngram -> word"),
        (("--bert-max-ngram", "2"), "bert_max_ngram: 3 -> 2"),
    ],
)
def test_training_order_of_bert_names_changed_options(tmp_path: Path, flags: tuple[str, ...], change: str) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5]] * 20))
    before = bert_order(prefix)
    assert before.changes(TrainingOrder.from_json(before.to_json())) == []
    assert change in before.changes(bert_order(prefix, *flags))


def test_training_order_of_bert_depends_on_the_head_and_on_sentences(tmp_path: Path) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[5, 5], [5, 5]]))
    before, gpt = bert_order(prefix), TrainingOrder.of(run_of(prefix))
    assert before.changes(bert_order(prefix, "--bert-no-binary-head")) == ["bert_binary_head: True -> False"]
    write_sentences(tmp_path / "a", numbered_sentences([[5, 5], [4, 6]]))
    (change,) = before.changes(bert_order(prefix))
    assert change.startswith("data: ")
    assert gpt.changes(TrainingOrder.of(run_of(prefix))) == []


def test_training_order_of_an_earlier_version_is_that_of_gpt(tmp_path: Path) -> None:
    run = run_of(write_sentences(tmp_path / "a", numbered_sentences([[5, 5]])))
    content = TrainingOrder.of(run).to_json()
    del content["sampling"]
    assert TrainingOrder.from_json(content).changes(TrainingOrder.of(run)) == []
