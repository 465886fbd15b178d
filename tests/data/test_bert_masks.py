from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from megatron_ds.data.bert_masks import choose_masked, choose_runs, find_words, ngram_shares, replace_masked
from megatron_ds.data.draws import Draws
from tests.data.bert import FIRST_WORD, KNOWN, SAMPLING, VOCAB_SIZE

MaskType = Literal["token", "word", "ngram"]


def sample(seed: int, length: int = 500) -> NDArray[np.int64]:
    """``[CLS] A [SEP] B [SEP]`` with random tokens, a third of which continue words."""
    tokens = np.random.default_rng(seed).integers(FIRST_WORD, VOCAB_SIZE, size=length)
    tokens[[0, length // 3, -1]] = KNOWN.cls_id, KNOWN.sep_id, KNOWN.sep_id
    return tokens


def reference_words(tokens: NDArray[np.int64]) -> list[list[int]]:
    assert KNOWN.continues_word is not None
    words: list[list[int]] = []
    is_open = False
    for place, token in enumerate(tokens.tolist()):
        if token in KNOWN.special_ids:
            is_open = False
        elif is_open and KNOWN.continues_word[token]:
            words[-1].append(place)
        else:
            words.append([place])
            is_open = True
    return words


@pytest.mark.parametrize("seed", range(5))
def test_find_words_equals_the_reference(seed: int) -> None:
    tokens = sample(seed)
    words = find_words(tokens, KNOWN, whole_words=True)
    found = [list(range(*word)) for word in zip(words.starts.tolist(), words.ends.tolist(), strict=True)]
    assert found == reference_words(tokens)
    assert max(map(len, found)) > 1
    single = find_words(tokens, KNOWN, whole_words=False)
    assert (single.ends - single.starts == 1).all()
    assert len(single.starts) == len(tokens) - 3


@pytest.mark.parametrize("mask_type", ["token", "word", "ngram"])
@pytest.mark.parametrize("mask_prob", [0.05, 0.15, 0.5])
def test_choose_masked_has_the_number_and_no_special_token(mask_type: MaskType, mask_prob: float) -> None:
    sampling = replace(SAMPLING, mask_type=mask_type, mask_prob=mask_prob)
    for seed in range(40):
        tokens = sample(seed, length=40 + seed)
        masked = choose_masked(tokens, KNOWN, sampling, Draws(seed))
        # Samples as long as these have words of one token left whatever was chosen before.
        assert len(masked) == max(1, round(mask_prob * len(tokens)))
        assert (np.diff(masked) > 0).all()
        assert not np.isin(tokens[masked], KNOWN.special_ids).any()


@pytest.mark.parametrize("mask_type", ["word", "ngram"])
def test_choose_masked_takes_words_whole(mask_type: MaskType) -> None:
    sampling = replace(SAMPLING, mask_type=mask_type)
    for seed in range(20):
        tokens = sample(seed)
        masked = set(choose_masked(tokens, KNOWN, sampling, Draws(seed)).tolist())
        assert all(len(masked & set(word)) in (0, len(word)) for word in reference_words(tokens))


def test_choose_masked_tokens_does_not_keep_words_whole() -> None:
    tokens = sample(1)
    masked = set(choose_masked(tokens, KNOWN, replace(SAMPLING, mask_type="token"), Draws(1)).tolist())
    assert any(0 < len(masked & set(word)) < len(word) for word in reference_words(tokens))


@pytest.mark.parametrize("mask_type", ["token", "word", "ngram"])
def test_choose_masked_reaches_every_token_evenly(mask_type: MaskType) -> None:
    """Of 2000 draws, each of 20 tokens gets its share within five standard deviations."""
    tokens = np.array([KNOWN.cls_id, *range(FIRST_WORD, FIRST_WORD + 60, 3), KNOWN.sep_id])
    assert KNOWN.continues_word is not None and not KNOWN.continues_word[tokens].any()
    sampling = replace(SAMPLING, mask_type=mask_type, max_ngram=1)
    chosen = np.concatenate([choose_masked(tokens, KNOWN, sampling, Draws(seed)) for seed in range(2000)])
    counts = np.bincount(chosen, minlength=22)
    assert counts[[0, 21]].tolist() == [0, 0]
    share = round(0.15 * 22) / 20
    assert np.abs(counts[1:21] - 2000 * share).max() < 5 * np.sqrt(2000 * share * (1 - share))


def test_choose_masked_word_longer_than_the_number_is_masked_when_there_is_no_other() -> None:
    word = [FIRST_WORD, 12, 15, 18]
    tokens = np.array([KNOWN.cls_id, *word, KNOWN.sep_id])
    assert choose_masked(tokens, KNOWN, SAMPLING, Draws(1)).tolist() == [1, 2, 3, 4]
    two = np.array([KNOWN.cls_id, *word, *word[:2], KNOWN.sep_id])
    assert choose_masked(two, KNOWN, SAMPLING, Draws(1)).tolist() == [5, 6]


def test_choose_masked_few_tokens_masks_no_more_than_there_are() -> None:
    tokens = np.array([KNOWN.cls_id, FIRST_WORD, KNOWN.sep_id])
    for mask_type in ("token", "ngram"):
        sampling = replace(SAMPLING, mask_type=mask_type, mask_prob=0.99)
        assert choose_masked(tokens, KNOWN, sampling, Draws(1)).tolist() == [1]


@pytest.mark.parametrize("mask_type", ["token", "word", "ngram"])
def test_choose_masked_unknown_words_only_masks_nothing(mask_type: MaskType) -> None:
    tokens = np.array([KNOWN.cls_id, 1, 1, KNOWN.sep_id, 1, KNOWN.sep_id])
    masked = choose_masked(tokens, KNOWN, replace(SAMPLING, mask_type=mask_type), Draws(1))
    assert masked.tolist() == []
    assert replace_masked(tokens, masked, KNOWN, Draws(1)).tolist() == tokens.tolist()


def test_choose_runs_lengths_are_proportional_to_one_over_n() -> None:
    """1, 1/2, 1/3 over 11/6, within five standard deviations; runs so rare that hardly two of them meet."""
    assert ngram_shares(3) == pytest.approx([6 / 11, 9 / 11, 1])
    lengths: Counter[int] = Counter()
    for seed in range(60):
        tokens = np.full(10_000, FIRST_WORD)
        runs = choose_runs(find_words(tokens, KNOWN, whole_words=True), 60, 3, Draws(seed))
        # The last run may be shortened to fit.
        lengths.update(end - start for start, end in runs[:-1])
    count = lengths.total()
    assert count > 1500
    for length, share in zip((1, 2, 3), (6 / 11, 3 / 11, 2 / 11), strict=True):
        assert abs(lengths[length] - share * count) < 5 * np.sqrt(count * share * (1 - share))


def test_choose_runs_cross_no_special_token_and_share_no_word() -> None:
    tokens = np.array([KNOWN.cls_id, *([FIRST_WORD, FIRST_WORD + 1, KNOWN.sep_id] * 40)])
    words = find_words(tokens, KNOWN, whole_words=True)
    for seed in range(20):
        places = [list(range(*run)) for run in choose_runs(words, 50, 5, Draws(seed))]
        assert max(map(len, places)) == 2
        flat = [place for run in places for place in run]
        assert len(set(flat)) == len(flat) == 50
        assert not np.isin(tokens[flat], KNOWN.special_ids).any()


def test_replace_masked_is_eighty_ten_ten() -> None:
    """30 000 masked tokens: within five standard deviations, and other tokens evenly from those that aren't special."""
    tokens = np.full(40_000, FIRST_WORD)
    masked = np.arange(5_000, 35_000)
    seen = replace_masked(tokens, masked, KNOWN, Draws(1))
    assert (np.delete(seen, masked) == FIRST_WORD).all()
    seen = seen[masked]
    other = seen[(seen != KNOWN.mask_id) & (seen != FIRST_WORD)]
    for count, share in ((int((seen == KNOWN.mask_id).sum()), 0.8), (len(other), 0.1)):
        assert abs(count - 30_000 * share) < 5 * np.sqrt(30_000 * share * (1 - share))
    assert not np.isin(other, KNOWN.special_ids).any()
    assert np.isin([5, 6, 11], replace_masked(tokens, np.arange(40_000), replace(KNOWN, vocab_size=12), Draws(1))).all()
    assert other.max() > VOCAB_SIZE - 40
    assert abs(other.mean() - VOCAB_SIZE / 2) < 5 * VOCAB_SIZE / np.sqrt(12 * len(other)) + 5
