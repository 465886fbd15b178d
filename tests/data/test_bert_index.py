from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from megatron_ds.data.bert_index import (
    BertIndex,
    build_bert_index,
    cut_documents,
    draw_targets,
    sentence_counts,
    usable_sentences,
)
from megatron_ds.data.draws import Draws


def reference_cuts(
    sizes: list[int], document_index: list[int], targets: dict[int, int], min_sentences: int
) -> list[list[int]]:
    """Sentence after sentence, for sentences that all have tokens."""
    samples = []
    for first, end in pairwise(document_index):
        start, tokens = first, 0
        for sentence in range(first, end):
            tokens += sizes[sentence]
            is_full = tokens >= targets.get(start, 0) and sentence + 1 - start >= min_sentences
            if end - first >= min_sentences and (
                (is_full and end - sentence - 1 >= min_sentences) or sentence + 1 == end
            ):
                samples.append([start, sentence + 1, targets[start]])
                start, tokens = sentence + 1, 0
    return samples


def corpus(seed: int, least: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 30, size=60)
    sizes = generator.integers(least, 20, size=int(counts.sum())).astype(np.int32)
    return sizes, np.concatenate([[0], np.cumsum(counts)])


def index(num_samples: int, min_sentences: int = 2, corpus_seed: int = 0, seed: int = 1, split: int = 0) -> BertIndex:
    sizes, documents = corpus(corpus_seed, least=0)
    return build_bert_index(
        sizes,
        documents,
        max_tokens=40,
        min_sentences=min_sentences,
        short_seq_prob=0.3,
        num_samples=num_samples,
        seed=seed,
        split_number=split,
    )


@pytest.mark.parametrize("min_sentences", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_cut_documents_equals_the_reference(seed: int, min_sentences: int) -> None:
    sizes, documents = corpus(seed)
    sentences = usable_sentences(sizes, documents, min_sentences)
    targets = draw_targets(Draws(seed), len(sentences.numbers), 40, 0.5)
    by_number = dict(zip(sentences.numbers.tolist(), targets.tolist(), strict=True))
    expected = reference_cuts(sizes.tolist(), documents.tolist(), by_number, min_sentences)
    assert cut_documents(sentences, targets, min_sentences).tolist() == expected


@pytest.mark.parametrize("min_sentences", [1, 2])
def test_index_epoch_has_every_sentence_of_usable_documents_once(min_sentences: int) -> None:
    sizes, documents = corpus(0, least=0)
    ends = [0, *index(1000, min_sentences).epoch_ends.tolist()]
    samples = index(ends[-1], min_sentences).samples
    usable = [
        sentence
        for first, end in pairwise(documents.tolist())
        for sentence in range(first, end)
        if sizes[sentence] and (sizes[first:end] > 0).sum() >= min_sentences
    ]
    for first_sample, end_sample in pairwise(ends):
        used = [s for start, end, _ in samples[first_sample:end_sample].tolist() for s in range(start, end) if sizes[s]]
        assert sorted(used) == usable
    borders = documents[1:]
    for start, end, _ in samples.tolist():
        assert not ((borders > start) & (borders < end)).any(), "a sample is from one document"
        assert (sizes[start:end] > 0).sum() >= min_sentences


def test_index_order_does_not_depend_on_the_number_of_samples() -> None:
    longer = index(1500)
    assert len(longer.epoch_ends) > 3
    for count in (1, 200, 700, 1499):
        shorter = index(count)
        assert (shorter.samples == longer.samples[:count]).all()
        assert (shorter.epoch_ends == longer.epoch_ends[: len(shorter.epoch_ends)]).all()


def test_index_epochs_seeds_and_splits_are_drawn_independently() -> None:
    whole = index(1500)
    first, second = np.split(whole.samples[: whole.epoch_ends[1]], whole.epoch_ends[:1])
    assert sorted(first.tolist()) != sorted(second.tolist())
    assert first[:50].tolist() != sorted(first[:50].tolist())
    for other in (index(1500, seed=2), index(1500, split=1)):
        assert (other.samples[:50] != whole.samples[:50]).any()


def test_sentence_counts_of_empty_sentences_and_documents_is_zero() -> None:
    sizes = np.array([9, 3, 0, 5, 0, 0], np.int32)
    assert sentence_counts(sizes, np.array([1, 4, 4, 6, 6])).tolist() == [2, 0, 0, 0]
    assert sentence_counts(sizes, np.array([6, 6])).tolist() == [0]


def test_draw_targets_share_and_range_of_short_ones() -> None:
    """10 000 draws: within five standard deviations, and evenly from 2 to the whole length."""
    targets = draw_targets(Draws(1), 10_000, 12, 0.25)
    short = targets[targets < 12]
    assert set(short.tolist()) == set(range(2, 12))
    assert abs(len(short) - 10_000 * 0.25 * 10 / 11) < 5 * np.sqrt(10_000 * 0.25 * 0.75)
    assert np.abs(np.bincount(short, minlength=12)[2:] - len(short) / 10).max() < 5 * np.sqrt(len(short) * 0.1 * 0.9)
    assert (draw_targets(Draws(1), 100, 12, 0.0) == 12).all()


@pytest.mark.parametrize("min_sentences", [1, 2])
def test_cut_documents_beyond_32_bits_is_exact(min_sentences: int) -> None:
    """D3: four documents of 2^32 tokens in sentences of 2^30."""
    sizes, documents = np.full(16, 2**30, np.int32), np.arange(0, 17, 4)
    sentences = usable_sentences(sizes, documents, min_sentences)
    samples = cut_documents(sentences, np.full(16, 2**31 - 1), min_sentences)
    assert samples.dtype == np.int64
    assert samples[:, :2].tolist() == [[start, start + 2] for start in range(0, 16, 2)]
    alone = cut_documents(sentences, np.full(16, 2**31 + 1), min_sentences)
    by_number = dict.fromkeys(range(16), 2**31 + 1)
    assert alone.tolist() == reference_cuts(sizes.tolist(), documents.tolist(), by_number, min_sentences)


def test_cut_documents_one_document_of_many_samples_takes_few_rounds() -> None:
    """A chain of 200 000 samples; going from sample to sample would take as many steps."""
    sentences = usable_sentences(np.full(400_000, 8, np.int32), np.array([0, 400_000]), 2)
    samples = cut_documents(sentences, np.full(400_000, 16), 2)
    assert (samples[:, 0] == np.arange(0, 400_000, 2)).all()
