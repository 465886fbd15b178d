"""Which tokens make up sample i: the index of a GPT data set, in vectorised NumPy.

The documents of a split are shuffled anew for every epoch and laid end to end; sample k has the `seq_length` + 1 tokens
from position k x `seq_length` of that stream on, so neighbours share one token, which is a label in the first and an
input in the second. A sample belongs to the epoch of its first token, and the samples of an epoch are shuffled among
themselves. All samples of an epoch come before any of the next; the order does not depend on how many are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from megatron_ds.data.shuffle import permutations

# Keys of the two random streams. Changing them changes the order of every run.
_DOCUMENTS, _SAMPLES = 0, 1


@dataclass(frozen=True)
class GptIndex:
    """Where each sample starts.

    Attributes:
        document_order: documents in the order of the stream, [all epochs, then the head of one more].
        sample_starts: per sample its position in `document_order` and the offset in that document, in tokens,
            int64 [num_samples, 2], in the order of training.
    """

    document_order: NDArray[Any]
    sample_starts: NDArray[np.int64]


def index_dtype(largest: int) -> DTypeLike:
    """The dtype for values up to `largest`: int32 while it can hold them, else int64."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def epochs_needed(num_tokens: int, seq_length: int, num_samples: int) -> int:
    """Epochs that `num_samples` samples reach into.

    Args:
        num_tokens: tokens in one epoch.
        seq_length: tokens that one sample adds.
        num_samples: samples wanted, at least 1.
    """
    return (num_samples - 1) * seq_length // num_tokens + 1


def build_gpt_index(
    lengths: NDArray[np.int64], *, first_document: int, seq_length: int, num_epochs: int, seed: int, split_number: int
) -> GptIndex:
    """Builds the index of all samples that start in the first `num_epochs` epochs.

    Args:
        lengths: tokens per document of the split, [documents]. Together more than `seq_length`.
        first_document: number of the split's first document in the file.
        seq_length: input tokens of one sample.
        num_epochs: whole epochs to index.
        seed: seed of the order.
        split_number: 0 training, 1 validation, 2 test: they are shuffled independently.
    """
    num_tokens = int(lengths.sum())
    order = _document_order(lengths, seq_length, num_epochs, _bits(seed, split_number, _DOCUMENTS))
    borders = [-(-epoch * num_tokens // seq_length) for epoch in range(num_epochs + 1)]
    starts = sample_starts(lengths.take(order), seq_length, borders[-1])
    shuffled = starts.take(
        _shuffled_within(np.array(borders, dtype=np.int64), _bits(seed, split_number, _SAMPLES)), axis=0
    )
    dtype = index_dtype(first_document + len(lengths))
    return GptIndex(order.astype(dtype) + np.asarray(first_document, dtype), shuffled)


def sample_starts(lengths: NDArray[np.int64], seq_length: int, num_samples: int) -> NDArray[np.int64]:
    """Where samples start in a stream of documents, before any shuffling of samples.

    Args:
        lengths: tokens per document, in the order of the stream.
        seq_length: distance between two samples, in tokens.
        num_samples: number of samples; the stream is longer than the start of the last.

    Returns:
        int64 [num_samples, 2]: position of the document in the stream, offset in it.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    first_tokens = np.arange(num_samples, dtype=np.int64) * seq_length
    # "right": a sample never starts in an empty document, or at the end of one.
    positions = np.searchsorted(ends, first_tokens, side="right")
    offsets = first_tokens - (ends[positions] - lengths[positions])
    return np.stack([positions, offsets], axis=1)


def _bits(seed: int, split_number: int, purpose: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence((seed, split_number, purpose)))


def _document_order(
    lengths: NDArray[np.int64], seq_length: int, num_epochs: int, bits: np.random.PCG64
) -> NDArray[np.int64]:
    """A permutation of the documents per epoch, and the head of one more, into which the last sample may reach."""
    order = permutations(bits, num_epochs + 1, len(lengths))
    head = order[-1]
    needed = int(np.searchsorted(np.cumsum(lengths[head], dtype=np.int64), seq_length)) + 1
    return np.concatenate([order[:-1].ravel(), head[:needed]])


def _shuffled_within(borders: NDArray[np.int64], bits: np.random.PCG64) -> NDArray[np.int64]:
    """A permutation of ``[borders[e], borders[e + 1])`` for each epoch e, one after the other."""
    counts = np.diff(borders)
    # Epochs differ by at most one sample. A row has room for the larger number, whatever epochs were asked for; where
    # there is one less, the largest number of the row is left out.
    order = permutations(bits, len(counts), int(counts[0]))
    return (borders[:-1, None] + order)[order < counts[:, None]]
