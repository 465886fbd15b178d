from __future__ import annotations

import numpy as np
import pytest

from megatron_ds.data.gpt_index import GptIndex, build_gpt_index, epochs_needed, index_dtype, sample_starts


def reference_starts(lengths: list[int], seq_length: int, num_samples: int) -> list[list[int]]:
    starts = []
    position, offset = 0, 0
    for _ in range(num_samples):
        while offset >= lengths[position]:
            offset -= lengths[position]
            position += 1
        starts.append([position, offset])
        offset += seq_length
    return starts


def index(lengths: list[int], num_epochs: int, seq_length: int = 4, seed: int = 1, split_number: int = 0) -> GptIndex:
    return build_gpt_index(
        np.array(lengths, dtype=np.int64),
        first_document=0,
        seq_length=seq_length,
        num_epochs=num_epochs,
        seed=seed,
        split_number=split_number,
    )


@pytest.mark.parametrize("seed", range(5))
def test_sample_starts_equal_the_reference(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 12, size=200)
    num_samples = int(lengths.sum()) // 5
    expected = reference_starts(lengths.tolist(), 5, num_samples)
    assert sample_starts(lengths, 5, num_samples).tolist() == expected


def test_sample_starts_beyond_32_bits_are_exact() -> None:
    """D3: 5 documents of 2^30 tokens."""
    lengths = np.full(5, 2**30, dtype=np.int64)
    num_samples = 5 * 2**30 // 2048
    starts = sample_starts(lengths, 2048, num_samples)
    assert starts.dtype == np.int64
    assert starts.min() >= 0
    assert starts[:1000].tolist() == [[0, 2048 * number] for number in range(1000)]
    assert starts[-1000:].tolist() == [[4, 2**30 - 2048 * number] for number in range(1000, 0, -1)]
    assert (np.diff(starts[:, 0] * 2**30 + starts[:, 1]) == 2048).all()


def test_build_many_epochs_of_a_small_corpus_beyond_32_bits() -> None:
    """D3: 100 documents of 10 000 tokens, 2200 epochs: more than 2^31 tokens."""
    built = index([10_000] * 100, 2200, seq_length=2048)
    assert len(built.sample_starts) * 2048 > 2**31
    assert built.sample_starts.min() >= 0
    tokens = built.sample_starts[:, 0] * 10_000 + built.sample_starts[:, 1]
    np.testing.assert_array_equal(np.sort(tokens), np.arange(len(tokens)) * 2048)
    # Epochs come one after the other.
    assert (np.diff(tokens // 1_000_000) >= 0).all()


def test_index_dtype_grows_with_the_values() -> None:
    """D5."""
    assert index_dtype(2**31 - 1) == np.int32
    assert index_dtype(2**31) == np.int64


@pytest.mark.parametrize(("num_samples", "expected"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_epochs_needed_counts_epochs_that_samples_start_in(num_samples: int, expected: int) -> None:
    assert epochs_needed(40, 4, num_samples) == expected
    assert len(index([40], expected).sample_starts) >= num_samples


def test_documents_each_epoch_is_a_permutation() -> None:
    order = index([7, 3, 0, 9, 2, 4], 50).document_order
    for epoch in range(50):
        assert sorted(order[6 * epoch : 6 * epoch + 6].tolist()) == list(range(6))
    assert len({tuple(order[6 * epoch : 6 * epoch + 6].tolist()) for epoch in range(50)}) > 40


def test_samples_each_epoch_is_a_permutation_of_its_samples() -> None:
    lengths = [7, 3, 0, 9, 2, 4]
    built = index(lengths, 8)
    ends = np.cumsum(np.array(lengths)[built.document_order])
    starts = built.sample_starts
    tokens = ends[starts[:, 0]] - np.array(lengths)[built.document_order[starts[:, 0]]] + starts[:, 1]
    assert sorted(tokens.tolist()) == [4 * number for number in range(8 * 25 // 4)]
    assert (np.diff(tokens // 25) >= 0).all()


def test_order_does_not_depend_on_the_number_of_epochs() -> None:
    short, long = index([7, 3, 9, 2, 4], 2), index([7, 3, 9, 2, 4], 9)
    count = len(short.sample_starts)
    np.testing.assert_array_equal(short.sample_starts, long.sample_starts[:count])
    np.testing.assert_array_equal(short.document_order, long.document_order[: len(short.document_order)])


def test_order_depends_on_seed_and_split() -> None:
    orders = [index(list(range(1, 40)), 1, seed=seed, split_number=number) for seed in (1, 2) for number in (0, 1, 2)]
    assert len({order.document_order.tobytes() for order in orders}) == 6


def test_order_is_the_same_in_every_version() -> None:
    """A change of this order would change every resumed run: it is part of the interface."""
    built = index([5, 6, 7, 8], 2, seed=1234)
    assert built.document_order.tolist() == [3, 1, 2, 0, 1, 2, 3, 0, 1]
    assert built.sample_starts[:7].tolist() == [[1, 4], [0, 0], [1, 0], [2, 2], [3, 3], [2, 6], [0, 4]]
    assert built.sample_starts[7:].tolist() == [[6, 1], [4, 2], [7, 1], [6, 5], [5, 4], [5, 0]]
