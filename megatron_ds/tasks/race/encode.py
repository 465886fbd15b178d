"""RACE's questions as samples of BERT: four rows each, an option with its question and the article."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from megatron_ds.tasks.metrics import compute_metrics
from megatron_ds.tasks.pairs import PairExamples, second_only
from megatron_ds.tasks.predictions import CHOICES
from megatron_ds.tasks.race.read import LEVELS, RaceSet
from megatron_ds.tasks.ragged import TokenTexts
from megatron_ds.tokenizers import FlatIds, Tokenizer
from megatron_ds.tokenizers.bert_tokens import bert_tokens

# Megatron's MAX_QA_LENGTH.
MAX_QA_LENGTH = 128


def encode_race(
    sets: Sequence[RaceSet], tokenizer: Tokenizer, seq_length: int, max_qa_length: int = MAX_QA_LENGTH
) -> PairExamples:
    """The questions of one folder or more, as Megatron encodes them: ``[CLS] question and option [SEP] article [SEP]``.

    The article is cut at its end to fit.

    Args:
        sets: folders that all have answers, or all have none.
        tokenizer: one with BERT's special tokens.
        seq_length: tokens of a row.
        max_qa_length: tokens of a question with an option at most; the rest is cut off.

    Raises:
        ConfigError: the tokenizer has none of BERT's special tokens.
    """
    known = bert_tokens(tokenizer)
    questions = [question for each in sets for question in each.questions]
    is_labelled = sets[0].has_labels
    assert all(each.has_labels == is_labelled for each in sets), "folders of one kind"
    texts = [
        clean_text(with_option(question.question, option)) for question in questions for option in question.options
    ]
    starts = [0, *accumulate(len(each.articles) for each in sets)]
    articles = [
        start + question.article for each, start in zip(sets, starts[:-1], strict=True) for question in each.questions
    ]
    rows = np.stack([np.arange(len(texts)), np.repeat(articles, len(CHOICES))], axis=1)
    return PairExamples(
        path=", ".join(each.path for each in sets),
        firsts=_cut(TokenTexts.encoded(texts, tokenizer), max_qa_length),
        seconds=TokenTexts.encoded([clean_text(article) for each in sets for article in each.articles], tokenizer),
        rows=rows.reshape(-1, len(CHOICES), 2),
        labels=[question.label for question in questions if question.label is not None] if is_labelled else None,
        uids=[question.uid for question in questions],
        truncation=second_only,
        seq_length=seq_length,
        known=known,
    )


def with_option(question: str, option: str) -> str:
    """The option in the question's place for it (every ``_``), or behind the question."""
    return question.replace("_", option) if "_" in question else f"{question} {option}"


def clean_text(text: str) -> str:
    """Megatron's ``clean_text``: single spaces, and none before a full stop between two of them."""
    text = re.sub(r"\s+", " ", text)
    # Thrice, as there: one pass leaves every second of ". . . .".
    for _ in range(3):
        text = text.replace(" . ", ". ")
    return text


def _cut(texts: TokenTexts, most: int) -> TokenTexts:
    kept = [texts[number][:most] for number in range(len(texts))]
    return TokenTexts.of(FlatIds.of_arrays(kept))


def race_metrics(
    predictions: NDArray[np.float64], labels: NDArray[np.float64], levels: Sequence[str | None]
) -> dict[str, float]:
    """``accuracy`` over all questions, and ``accuracy_middle`` and ``accuracy_high`` where there are such questions.

    Args:
        predictions: chosen options, [N].
        labels: right options, [N].
        levels: of each question.
    """
    metrics = compute_metrics(("accuracy",), predictions, labels)
    for level in LEVELS:
        is_level = np.array([each == level for each in levels])
        if is_level.any():
            metrics[f"accuracy_{level}"] = compute_metrics(("accuracy",), predictions[is_level], labels[is_level])[
                "accuracy"
            ]
    return metrics
