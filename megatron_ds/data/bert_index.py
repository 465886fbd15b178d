"""Which sentences make up BERT's sample i, in vectorised NumPy.

A sample is a run of sentences of one document. It begins where the sample before it ended, and takes sentences until it
has its number of tokens: as many as a sample has room for or, for a share of samples, a number drawn evenly from 2 to
that (Devlin et al. 2018, "short sequences"; as in Megatron). What it has beyond that number is cut off later. Sentences
left at the end of a document that are too few for a sample join the one before. Documents with too few sentences have
no sample; sentences without tokens count as none.

Each epoch has other numbers of tokens, and its samples are shuffled among themselves; all of them come before any of
the next epoch. The order does not depend on how many samples are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.draws import Draws
from megatron_ds.data.shuffle import permutations

# Keys of the two random streams of an epoch, after those of `gpt_index`. Changing them changes the order of every run.
_TARGETS, _SAMPLES = 4, 5


@dataclass(frozen=True)
class BertIndex:
    """Where each sample's sentences are.

    Attributes:
        samples: per sample its first sentence, one past its last, and its tokens at most, int64 [num_samples, 3], in
            the order of training.
        epoch_ends: samples up to the end of each epoch; the last epoch may be longer than what is in `samples`,
            int64 [epochs].
    """

    samples: NDArray[np.int64]
    epoch_ends: NDArray[np.int64]


@dataclass(frozen=True)
class Sentences:
    """The sentences of usable documents, one document after the other.

    Attributes:
        numbers: number of each sentence in its file, int64 [sentences].
        lengths: tokens of each, at least 1, int64 [sentences].
        first: the first sentence of each document, as an index into these, int64 [documents].
        ends: one past the last sentence of the document that a sentence belongs to, int64 [sentences].
    """

    numbers: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first: NDArray[np.int64]
    ends: NDArray[np.int64]


def sentence_counts(sizes: NDArray[np.int32], document_index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sentences with tokens in each document, [documents].

    Args:
        sizes: tokens per sentence of the file.
        document_index: first sentence of each document, and one past the last of all, [documents + 1].
    """
    first, end = int(document_index[0]), int(document_index[-1])
    filled = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[first:end] > 0, dtype=np.int64)])
    return np.diff(filled[document_index - first])


def usable_sentences(sizes: NDArray[np.int32], document_index: NDArray[np.int64], min_sentences: int) -> Sentences:
    """The sentences of the documents that have at least `min_sentences` with tokens; see `sentence_counts`."""
    first, end = int(document_index[0]), int(document_index[-1])
    counts = sentence_counts(sizes, document_index)
    numbers = np.flatnonzero(sizes[first:end] > 0) + first
    is_usable = counts >= min_sentences
    numbers = numbers[np.repeat(is_usable, counts)]
    counts = counts[is_usable]
    ends = np.cumsum(counts)
    return Sentences(numbers, sizes[numbers].astype(np.int64), ends - counts, np.repeat(ends, counts))


def build_bert_index(
    sizes: NDArray[np.int32],
    document_index: NDArray[np.int64],
    *,
    max_tokens: int,
    min_sentences: int,
    short_seq_prob: float,
    num_samples: int,
    seed: int,
    split_number: int,
) -> BertIndex:
    """Builds the index of the first `num_samples` samples.

    Args:
        sizes: tokens per sentence of the file.
        document_index: first sentence of each document of the split, and one past the last of all, [documents + 1].
        max_tokens: tokens of text that a sample has room for, at least 2.
        min_sentences: sentences that a sample needs. At least one document has as many.
        short_seq_prob: share of samples that are made shorter.
        num_samples: samples, at least 1.
        seed: seed of the order.
        split_number: 0 training, 1 validation, 2 test: they are shuffled independently.
    """
    sentences = usable_sentences(sizes, document_index, min_sentences)
    epochs: list[NDArray[np.int64]] = []
    ends: list[int] = []
    while not ends or ends[-1] < num_samples:
        key = (seed, split_number, len(epochs))
        targets = draw_targets(Draws(*key, _TARGETS), len(sentences.numbers), max_tokens, short_seq_prob)
        samples = cut_documents(sentences, targets, min_sentences)
        bits = np.random.PCG64(np.random.SeedSequence((*key, _SAMPLES)))
        epochs.append(samples[permutations(bits, 1, len(samples))[0]])
        ends.append(sum(ends[-1:]) + len(samples))
    return BertIndex(np.concatenate(epochs)[:num_samples], np.array(ends, dtype=np.int64))


def draw_targets(draws: Draws, count: int, max_tokens: int, short_seq_prob: float) -> NDArray[np.int64]:
    """How many tokens a sample has that begins at each of `count` sentences, [count].

    Args:
        draws: random numbers.
        count: how many.
        max_tokens: the usual number, at least 2.
        short_seq_prob: share of those that are drawn evenly from 2 to `max_tokens`.
    """
    is_short = draws.uniforms(count) < short_seq_prob
    return np.where(is_short, 2 + draws.integers(max_tokens - 1, count), max_tokens)


def cut_documents(sentences: Sentences, targets: NDArray[np.int64], min_sentences: int) -> NDArray[np.int64]:
    """Cuts all documents into samples, in the order of the file.

    Args:
        sentences: the sentences.
        targets: tokens of a sample that begins at each sentence, [sentences].
        min_sentences: sentences that a sample needs.

    Returns:
        Per sample its first sentence, one past its last, and its target; int64 [samples, 3].
    """
    count = len(sentences.numbers)
    token_ends = np.cumsum(sentences.lengths)
    wanted = token_ends - sentences.lengths + targets
    cuts = np.searchsorted(token_ends, wanted, side="left") + 1
    cuts = np.maximum(cuts, np.arange(count) + min_sentences)
    cuts = np.where(sentences.ends - cuts < min_sentences, sentences.ends, cuts)
    starts = np.flatnonzero(_reached(sentences.first, np.where(cuts == sentences.ends, count, cuts)))
    numbers = sentences.numbers
    return np.stack([numbers[starts], numbers[cuts[starts] - 1] + 1, targets[starts]], axis=1)


def _reached(starts: NDArray[np.int64], following: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places chains pass that begin at `starts` and go from each place to the following one.

    Args:
        starts: first places.
        following: the place after each; as many as there are places where a chain ends, [places].
    """
    reached = np.zeros(len(following) + 1, np.bool_)
    reached[starts] = True
    reached[-1] = True
    # After round k, everything within 2^k steps is reached: a document of a million samples takes twenty rounds.
    jump = np.append(following, len(following))
    while True:
        places = jump[np.flatnonzero(reached)]
        if reached[places].all():
            return reached[:-1]
        reached[places] = True
        jump = jump[jump]
