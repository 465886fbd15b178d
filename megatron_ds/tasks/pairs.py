"""Samples of classification: ``[CLS] a [SEP] b [SEP]`` and padding, as BERT's finetuning has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatron_ds.tasks.ragged import TokenTexts
from megatron_ds.tokenizers.bert_tokens import BertTokens

# Tokens kept of two texts, from their lengths and the tokens of both at most.
Truncation: TypeAlias = Callable[[int, int, int], tuple[int, int]]


@dataclass(frozen=True)
class ClassificationSample:
    """One example.

    Attributes:
        tokens: int64 [S], or [choices, S] for a choice between texts.
        token_types: 1 for ``b [SEP]``, else 0, of the same shape.
        padding_mask: 1 for tokens, 0 for padding, of the same shape.
        label: number of the right class or choice, or the score of a regression; 0 where there is none.
        weight: 1; 0 where the example only fills up a batch, or has no label.
        uid: what the example is called in its file.
    """

    tokens: NDArray[np.int64]
    token_types: NDArray[np.int64]
    padding_mask: NDArray[np.int64]
    label: float
    weight: float
    uid: str

    def as_filling(self) -> ClassificationSample:
        """The same sample with weight 0."""
        return replace(self, weight=0.0)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """What is left when tokens are cut off the longer text until both fit; the shorter one may stay whole.

    Of an odd number of tokens for two long texts, the longer text has one more; of equally long ones, the second.
    The same as transformers' ``truncation="longest_first"``.

    Args:
        first: tokens of the first text.
        second: tokens of the second text.
        room: tokens of both at most.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)


def second_only(first: int, second: int, room: int) -> tuple[int, int]:
    """What is left when the second text is cut, and the first one only where it doesn't fit by itself.

    Args:
        first: tokens of the first text.
        second: tokens of the second text.
        room: tokens of both at most.
    """
    kept = min(first, room)
    return kept, min(second, room - kept)


@dataclass(frozen=True)
class PairExamples:
    """Encoded examples of classification, put together when they are asked for.

    Attributes:
        path: where they are from.
        firsts: the texts that come first.
        seconds: the texts that come second, or None.
        rows: which texts each example has, int64 [examples, choices, 2]: a number in `firsts` and one in `seconds`.
        labels: class, choice or score of each example; None without labels.
        uids: what each example is called.
        truncation: how texts are cut to fit.
        seq_length: tokens of a sample, S.
        known: the tokenizer's special tokens.
    """

    path: str
    firsts: TokenTexts
    seconds: TokenTexts | None
    rows: NDArray[np.int64]
    labels: Sequence[float] | None
    uids: Sequence[str]
    truncation: Truncation
    seq_length: int
    known: BertTokens

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> ClassificationSample:
        """Example `index`; [S] where it has one text or pair, else [choices, S]."""
        arrays = np.stack([self._row(first, second) for first, second in self.rows[index].tolist()], axis=1)
        # [3, choices, S] -> 3 x [S] without a choice.
        tokens, types, mask = arrays[:, 0] if arrays.shape[1] == 1 else arrays
        label, weight = (0, 0.0) if self.labels is None else (self.labels[index], 1.0)
        return ClassificationSample(tokens, types, mask, label, weight, self.uids[index])

    def _row(self, first: int, second: int) -> NDArray[np.int64]:
        return encode_pair(
            self.firsts[first],
            None if self.seconds is None else self.seconds[second],
            truncation=self.truncation,
            seq_length=self.seq_length,
            known=self.known,
        )


def encode_pair(
    first: NDArray[np.int32],
    second: NDArray[np.int32] | None,
    *,
    truncation: Truncation,
    seq_length: int,
    known: BertTokens,
) -> NDArray[np.int64]:
    """Puts special tokens around one or two texts, cuts them to fit and fills up with padding.

    Args:
        first: ids of the first text.
        second: ids of the second text, or None.
        truncation: how two texts are cut.
        seq_length: S, at least 5.
        known: the tokenizer's special tokens.

    Returns:
        Tokens, token types and padding mask, int64 [3, S].
    """
    if second is None:
        text = [known.cls_id, *first[: seq_length - 2].tolist(), known.sep_id]
        second_tokens = 0
    else:
        kept_first, kept_second = truncation(len(first), len(second), seq_length - 3)
        front = [known.cls_id, *first[:kept_first].tolist(), known.sep_id]
        text = [*front, *second[:kept_second].tolist(), known.sep_id]
        second_tokens = kept_second + 1
    sample = np.zeros((3, seq_length), np.int64)
    sample[0] = known.pad_id
    sample[0, : len(text)] = text
    sample[1, len(text) - second_tokens : len(text)] = 1
    sample[2, : len(text)] = 1
    return sample
