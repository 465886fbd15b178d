"""BERT's samples: one or two segments of a document, some of whose tokens are to be predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.bert_index import BertIndex
from megatron_ds.data.bert_masks import choose_masked, replace_masked
from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.draws import Draws
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.samples import Origin, Piece
from megatron_ds.tokenizers.bert_tokens import BertTokens

# Key of the random stream of a sample, after those of `bert_index`.
_CONTENT = 6


@dataclass(frozen=True)
class BertSample:
    """One sample, all arrays int64 [seq_length].

    Attributes:
        tokens: ``[CLS] A [SEP] B [SEP]``, or ``[CLS] A [SEP]``, as the model sees it, then padding.
        token_types: 1 for ``B [SEP]``, else 0.
        padding_mask: 1 for tokens, 0 for padding.
        labels: the tokens before any was masked; padding stays padding.
        loss_mask: 1 where a token is to be predicted, else 0.
        sop_label: 1 when the second segment comes first in the document, else 0; None with one segment.
    """

    tokens: NDArray[np.int64]
    token_types: NDArray[np.int64]
    padding_mask: NDArray[np.int64]
    labels: NDArray[np.int64]
    loss_mask: NDArray[np.int64]
    sop_label: int | None

    def stacked(self) -> NDArray[np.int64]:
        """All of it in one array, of which two samples have the same only if they are the same."""
        order = np.full_like(self.tokens, -1 if self.sop_label is None else self.sop_label)
        return np.stack([self.tokens, self.token_types, self.padding_mask, self.labels, self.loss_mask, order])


@dataclass(frozen=True)
class Segments:
    """The text of a sample.

    Attributes:
        first: tokens of the first segment.
        second: tokens of the second one, or None.
        is_swapped: whether the second one comes first in the document.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64] | None = None
    is_swapped: bool = False


class BertDataset:
    """The samples of one data set and split, in the order of training.

    What is drawn for a sample depends on the seed, the split, and its number alone, which goes on over epochs.

    Args:
        indexed: the token files, a sequence for each sentence.
        index: where each sample's sentences are; it may have more samples than are wanted.
        sampling: how samples are made.
        known: the tokenizer's special tokens.
        num_samples: number of samples.
        seed: seed of everything that is drawn.
        split_number: 0 training, 1 validation, 2 test.
    """

    def __init__(
        self,
        indexed: IndexedDataset,
        index: BertIndex,
        *,
        sampling: BertSampling,
        known: BertTokens,
        num_samples: int,
        seed: int,
        split_number: int,
    ) -> None:
        assert num_samples <= len(index.samples), "the index was built for fewer samples"
        self._indexed = indexed
        self._index = index
        self._sampling = sampling
        self._known = known
        self._num_samples = num_samples
        self._key = (seed, split_number)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int, /) -> BertSample:
        """Sample `index`."""
        sentences, max_tokens = self._sentences(index)
        draws = Draws(*self._key, index, _CONTENT)
        if self._sampling.binary_head:
            segments = split_in_two(sentences, max_tokens, draws)
        else:
            (text,) = cut_to_fit([np.concatenate(sentences)], max_tokens, draws)
            segments = Segments(text)
        return make_sample(segments, self._sampling, self._known, draws)

    def origin(self, index: int, /) -> Origin:
        """Where sample `index` is from: the sentences that it is made of, before anything is cut off."""
        start, end, _ = self._row(index)
        document = int(np.searchsorted(self._indexed.document_index, start, side="right")) - 1
        first, last = (self._place(sentence) for sentence in (start, end - 1))
        num_tokens = last + int(self._indexed.sizes[end - 1]) - first
        piece = Piece(document, first - self._indexed.document_start(document), num_tokens)
        return Origin(self._indexed.prefix, index, (piece,))

    def _row(self, index: int) -> tuple[int, int, int]:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        start, end, max_tokens = self._index.samples[index].tolist()
        return start, end, max_tokens

    def _place(self, sentence: int) -> int:
        return int(self._indexed.pointers[sentence]) // self._indexed.dtype.itemsize

    def _sentences(self, index: int) -> tuple[list[NDArray[np.int64]], int]:
        """The sentences of a sample that have tokens, and how many tokens it may have."""
        start, end, max_tokens = self._row(index)
        sizes = self._indexed.sizes[start:end].astype(np.int64)
        first = self._place(start)
        tokens = self._indexed.tokens[first : first + int(sizes.sum())].astype(np.int64)
        return [each for each in np.split(tokens, np.cumsum(sizes)[:-1]) if len(each)], max_tokens


def split_in_two(sentences: list[NDArray[np.int64]], max_tokens: int, draws: Draws) -> Segments:
    """Splits sentences into two segments at a random border, and swaps these for half of the samples.

    Args:
        sentences: at least two, none empty.
        max_tokens: tokens of both segments at most, at least 2.
        draws: random numbers.
    """
    border = 1 + int(draws.integers(len(sentences) - 1, 1)[0])
    segments = [np.concatenate(sentences[:border]), np.concatenate(sentences[border:])]
    is_swapped = bool(draws.heads(1))
    if is_swapped:
        segments.reverse()
    first, second = cut_to_fit(segments, max_tokens, draws)
    return Segments(first, second, is_swapped)


def cut_to_fit(segments: list[NDArray[np.int64]], max_tokens: int, draws: Draws) -> list[NDArray[np.int64]]:
    """Takes tokens off the longer of two segments, one by one, each from its front or its end, until both fit.

    Of two that are equally long, the second is cut, as in Megatron.

    Args:
        segments: one or two.
        max_tokens: tokens of all segments at most, at least one for each.
        draws: random numbers.
    """
    lengths = [len(segment) for segment in segments]
    if len(segments) == 1:
        kept = [min(lengths[0], max_tokens)]
    elif sum(lengths) <= max_tokens:
        kept = lengths
    else:
        # Cut in turns, they end equally long, or the first one longer by a token; a shorter one stays whole.
        first = min(lengths[0], max(max_tokens - lengths[1], (max_tokens + 1) // 2))
        kept = [first, max_tokens - first]
    return [_shortened(segment, count, draws) for segment, count in zip(segments, kept, strict=True)]


def _shortened(segment: NDArray[np.int64], count: int, draws: Draws) -> NDArray[np.int64]:
    excess = len(segment) - count
    from_front = draws.heads(excess) if excess else 0
    return segment[from_front : from_front + count]


def make_sample(segments: Segments, sampling: BertSampling, known: BertTokens, draws: Draws) -> BertSample:
    """Puts special tokens around segments, masks tokens, and fills the sample up.

    Args:
        segments: the text, which fits.
        sampling: how samples are made.
        known: the tokenizer's special tokens.
        draws: random numbers.
    """
    text = np.concatenate(list(_with_special_tokens(segments, known)))
    masked = choose_masked(text, known, sampling, draws)
    seen = replace_masked(text, masked, known, draws)
    assert len(text) <= sampling.seq_length, "the segments fit"
    labels, tokens = np.full((2, sampling.seq_length), known.pad_id)
    labels[: len(text)], tokens[: len(text)] = text, seen
    loss_mask, token_types, padding_mask = np.zeros((3, sampling.seq_length), np.int64)
    loss_mask[masked] = 1
    padding_mask[: len(text)] = 1
    if segments.second is None:
        return BertSample(tokens, token_types, padding_mask, labels, loss_mask, None)
    token_types[len(segments.first) + 2 : len(text)] = 1
    return BertSample(tokens, token_types, padding_mask, labels, loss_mask, int(segments.is_swapped))


def _with_special_tokens(segments: Segments, known: BertTokens) -> Iterator[NDArray[np.int64]]:
    cls, sep = np.array([known.cls_id]), np.array([known.sep_id])
    yield from (cls, segments.first, sep)
    if segments.second is not None:
        yield from (segments.second, sep)
