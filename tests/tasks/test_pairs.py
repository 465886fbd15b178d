from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_ds.errors import ConfigError, DataError
from megatron_ds.tasks.classification_batch import make_task_batch
from megatron_ds.tasks.examples import Example
from megatron_ds.tasks.glue.encode import encode_glue
from megatron_ds.tasks.glue.read import GlueFile
from megatron_ds.tasks.pairs import longest_first, second_only
from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from tests.tokenizers.conftest import Flags

LONG, SHORT = "The fox jumping, hello! café 日本 mask cat. " * 2, "hello foxs"
# Both fit, either one is long, both are long, of equal length, and empty ones.
PAIRS = [(SHORT, SHORT), (LONG, SHORT), (SHORT, LONG), (LONG, LONG), (LONG, LONG + LONG), ("", LONG), (SHORT, "")]
SEQ_LENGTHS = [8, 15, 16, 48]


def glue_file(pairs: list[tuple[str, str | None]], label: float | None = 1) -> GlueFile:
    examples = tuple(Example(f"u{number}", *pair, label) for number, pair in enumerate(pairs))
    return GlueFile("dev.tsv", examples, label is not None)


@pytest.fixture
def transformers_tokenizer(bert_vocab_file: Path) -> Any:
    from transformers import BertTokenizer

    tokenizer = BertTokenizer(vocab=str(bert_vocab_file), do_lower_case=True)
    assert tokenizer.tokenize("The jumping") == ["the", "jump", "##ing"]
    return tokenizer


@pytest.mark.parametrize("seq_length", SEQ_LENGTHS)
@pytest.mark.parametrize("is_pair", [True, False])
def test_encode_glue_equals_transformers(
    wordpiece: Tokenizer, transformers_tokenizer: Any, seq_length: int, is_pair: bool
) -> None:
    pairs: list[tuple[str, str | None]] = [(first, second if is_pair else None) for first, second in PAIRS]
    encoded = encode_glue([glue_file(pairs)], wordpiece, seq_length)
    # As lists: of single texts, transformers takes an empty second one for none.
    theirs = transformers_tokenizer(
        *([list(texts) for texts in zip(*pairs, strict=True)][: 1 + is_pair]),
        truncation="longest_first",
        padding="max_length",
        max_length=seq_length,
    )
    assert [encoded[number].tokens.tolist() for number in range(len(encoded))] == theirs["input_ids"]
    assert [encoded[number].token_types.tolist() for number in range(len(encoded))] == theirs["token_type_ids"]
    assert [encoded[number].padding_mask.tolist() for number in range(len(encoded))] == theirs["attention_mask"]
    assert [(each.label, each.weight, each.uid) for each in encoded] == [(1, 1.0, f"u{n}") for n in range(len(pairs))]


def test_longest_first_cuts_tokens_one_by_one_off_the_longer() -> None:
    for first in range(9):
        for second in range(9):
            for room in range(12):
                left = [first, second]
                while sum(left) > room:
                    # Of equal rests, that of the text that was shorter: the longer one, or the second, has one more.
                    longer = 0 if left[0] > left[1] or (left[0] == left[1] and first <= second) else 1
                    left[longer] -= 1
                assert longest_first(first, second, room) == tuple(left)


def test_second_only_keeps_the_first_as_far_as_it_fits() -> None:
    assert second_only(3, 9, 8) == (3, 5)
    assert second_only(3, 2, 8) == (3, 2)
    assert second_only(12, 9, 8) == (8, 0)


def test_encode_glue_without_labels_has_weight_zero(wordpiece: Tokenizer) -> None:
    sample = encode_glue([glue_file([("fox", None)], None)], wordpiece, 8)[0]
    assert (sample.label, sample.weight, sample.uid) == (0, 0.0, "u0")


def test_encode_glue_of_two_files_has_both(wordpiece: Tokenizer) -> None:
    encoded = encode_glue([glue_file([("fox", "the")], 0), glue_file([("cafe", "the")], 1)], wordpiece, 8)
    assert encoded.path == "dev.tsv, dev.tsv"
    assert [encoded[number].label for number in range(len(encoded))] == [0, 1]
    assert encoded[0].tokens.tolist() != encoded[1].tokens.tolist()


def test_encode_glue_with_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="the tokenizer has no "):
        encode_glue([glue_file([("fox", None)])], build_tokenizer(Flags("ByteTokenizer")), 8)


def test_make_task_batch_stacks_classes_or_scores(wordpiece: Tokenizer) -> None:
    encoded = encode_glue([glue_file([("fox", "the"), ("cafe", "a fox")])], wordpiece, 8)
    samples = [encoded[0], encoded[1].as_filling()]
    batch = make_task_batch(samples, vocab_size=wordpiece.vocab_size)
    assert [tensor.shape for tensor in batch.inputs] == [(2, 8)] * 3
    assert batch.uids == ("u0", "u1")
    ((name, (labels, weights)),) = batch.targets.items()
    assert (name, labels.dtype, labels.tolist()) == ("classification_loss", torch.int64, [1, 1])
    assert (weights.dtype, weights.tolist()) == (torch.float32, [1.0, 0.0])
    scores = make_task_batch(samples, is_regression=True).to("cpu")
    ((name, (labels, _)),) = scores.targets.items()
    assert (name, labels.dtype, labels.tolist()) == ("regression_loss", torch.float32, [1.0, 1.0])
    assert np.array_equal(scores.tokens, np.stack([sample.tokens for sample in samples]))


def test_make_task_batch_refuses_tokens_outside_of_the_vocabulary(wordpiece: Tokenizer) -> None:
    sample = encode_glue([glue_file([("fox", None)])], wordpiece, 8)[0]
    with pytest.raises(DataError, match="the data has token id 6, outside of the vocabulary of 6 ids"):
        make_task_batch([sample], vocab_size=6)
