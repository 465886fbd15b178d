"""Which tokens of a sample BERT has to predict, and what stands in their place (Devlin et al. 2018, 3.1).

As in Megatron, a sample of n tokens has round(mask_prob x n) of them masked, its special tokens counted. What is masked
as one is a token, a whole word, or a run of 1 … N whole words whose length has probabilities proportional to 1/length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.draws import Draws
from megatron_ds.tokenizers.bert_tokens import BertTokens

# Of ten masked tokens, eight become [MASK], one another token, and one stays.
_MASK_SHARE, _RANDOM_SHARE = 0.8, 0.1


@dataclass(frozen=True)
class Words:
    """What is masked as one.

    Attributes:
        starts: place of the first token of each, int64 [words].
        ends: one past its last token, int64 [words].
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def find_words(tokens: NDArray[np.int64], known: BertTokens, *, whole_words: bool) -> Words:
    """The words of a sample: tokens, or whole words; special tokens belong to none.

    A piece that continues a word whose beginning was cut off begins one.

    Args:
        tokens: the sample without padding, [n].
        known: the tokenizer's special tokens, and its pieces that continue a word.
        whole_words: whether pieces of a word belong together.
    """
    may_be_masked = ~np.isin(tokens, known.special_ids)
    begins = may_be_masked
    if whole_words:
        assert known.continues_word is not None, "checked before the start"
        before = np.concatenate([np.zeros(1, np.bool_), may_be_masked[:-1]])
        begins = may_be_masked & ~(known.continues_word[tokens] & before)
    starts = np.flatnonzero(begins)
    # A word ends where another begins, or before a special token.
    borders = np.append(np.flatnonzero(begins | ~may_be_masked), len(tokens))
    return Words(starts, borders[np.searchsorted(borders, starts, side="right")])


def ngram_shares(max_ngram: int) -> NDArray[np.float64]:
    """Cumulative probabilities of runs of 1 … `max_ngram` words: proportional to 1/length, [max_ngram]."""
    shares = np.cumsum(1.0 / np.arange(1, max_ngram + 1))
    cumulative: NDArray[np.float64] = shares / shares[-1]
    return cumulative


def choose_runs(words: Words, num_tokens: int, max_ngram: int, draws: Draws) -> list[tuple[int, int]]:
    """Chooses runs of words, in random order, until `num_tokens` tokens are in them.

    A run is shortened where it would meet a special token or a chosen word, or go beyond the number. Words longer than
    what is left of it are passed over, so there may be fewer tokens; if no word fits at all, the shortest is chosen.

    Args:
        words: the words, at least one.
        num_tokens: tokens to choose.
        max_ngram: words in the longest run.
        draws: random numbers.

    Returns:
        Places of each run's first token, and one past its last.
    """
    count = len(words.starts)
    lengths = 1 + np.searchsorted(ngram_shares(max_ngram), draws.uniforms(count), side="right")
    starts, ends = words.starts.tolist(), words.ends.tolist()
    is_free = [True] * count
    left = num_tokens
    runs = []
    for first, length in zip(draws.order(count).tolist(), lengths.tolist(), strict=True):
        start = end = starts[first]
        for word in range(first, min(first + length, count)):
            # There may be a special token between two words.
            if not is_free[word] or starts[word] != end or ends[word] - start > left:
                break
            is_free[word] = False
            end = ends[word]
        if end == start:
            continue
        runs.append((start, end))
        left -= end - start
        if left == 0:
            break
    if not runs:
        shortest = int((words.ends - words.starts).argmin())
        runs.append((starts[shortest], ends[shortest]))
    return runs


def choose_masked(
    tokens: NDArray[np.int64], known: BertTokens, sampling: BertSampling, draws: Draws
) -> NDArray[np.int64]:
    """Places of the tokens that are to be predicted, in ascending order, int64 [masked]; none if all are special.

    Args:
        tokens: the sample without padding, [n].
        known: the tokenizer's special tokens.
        sampling: the share of masked tokens, and what is masked as one.
        draws: random numbers.
    """
    num_tokens = max(1, round(sampling.mask_prob * len(tokens)))
    words = find_words(tokens, known, whole_words=sampling.mask_type != "token")
    if sampling.mask_type == "token" or len(words.starts) == 0:
        return np.sort(words.starts[draws.order(len(words.starts))[:num_tokens]])
    max_ngram = sampling.max_ngram if sampling.mask_type == "ngram" else 1
    runs = choose_runs(words, num_tokens, max_ngram, draws)
    return np.concatenate([np.arange(start, end) for start, end in sorted(runs)])


def replace_masked(
    tokens: NDArray[np.int64], masked: NDArray[np.int64], known: BertTokens, draws: Draws
) -> NDArray[np.int64]:
    """The sample as the model sees it, [n].

    Args:
        tokens: the sample, [n].
        masked: places of the tokens that are to be predicted.
        known: the tokenizer's tokens. Other tokens are drawn from those that are not special.
        draws: random numbers.
    """
    fate = draws.uniforms(len(masked))
    others = draws.integers(known.vocab_size - len(known.special_ids), len(masked))
    for special in known.special_ids:
        others += others >= special
    seen: NDArray[np.int64] = tokens.copy()
    is_other = (fate >= _MASK_SHARE) & (fate < _MASK_SHARE + _RANDOM_SHARE)
    seen[masked[fate < _MASK_SHARE]] = known.mask_id
    seen[masked[is_other]] = others[is_other]
    return seen
