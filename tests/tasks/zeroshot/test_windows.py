"""Windows: each target once, with as much before it as the model sees."""

from __future__ import annotations

import pytest

from megatron_ds.generation.windows import Window, windows_of


@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("stride", [None, 1, 3])
@pytest.mark.parametrize("num_tokens", [2, 5, 8, 9, 23])
@pytest.mark.parametrize("first", [1, 4])
def test_windows_score_every_target_once_with_all_that_the_model_sees(
    length: int, stride: int | None, num_tokens: int, first: int
) -> None:
    stride = min(stride or length, length)
    tokens = tuple(range(100, 100 + num_tokens))
    windows = windows_of(tokens, first, length, stride)
    scored = [token for window in windows for token in window.tokens[-window.num_targets :]]
    assert scored == list(tokens[first:])
    for number, window in enumerate(windows):
        assert len(window.tokens) <= length + 1
        end = tokens.index(window.tokens[-1]) + 1
        assert window.tokens == tokens[max(0, end - length - 1) : end], "it reaches back as far as it can"
        assert window.num_targets <= (stride if number else length)


def test_windows_of_a_context_that_is_too_long_keep_its_right_end() -> None:
    assert windows_of(range(10), 8, 4) == [Window((5, 6, 7, 8, 9), 2)]


def test_windows_that_do_not_overlap_are_those_of_the_harness() -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    tokens = list(range(1, 24))
    theirs = [make_disjoint_window(pair) for pair in get_rolling_token_windows(tokens, 0, 5, 1)]
    ours = windows_of([0, *tokens], 1, 5)
    assert [(window.tokens, window.num_targets) for window in ours] == [
        (tuple(context + targets), len(targets)) for context, targets in theirs
    ]


def test_windows_without_a_target_are_none() -> None:
    assert windows_of((1, 2), 2, 4) == []
