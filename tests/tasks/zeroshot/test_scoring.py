"""Log-probabilities are those of `transformers`, for texts of any length, at any layout (field report G3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError
from megatron_ds.generation.scoring import WindowScore, score_windows
from megatron_ds.generation.windows import Window, windows_of
from megatron_ds.mpu import ModelParallelUnit, vocab_parallel_argmax
from tests.dist.pool import run_ranks
from tests.generation.models import (
    POSITIONS,
    SIZES,
    VOCAB_SIZE,
    Reference,
    Weights,
    gpt2,
    llama,
    model_at,
    random_weights,
)

Case = tuple[tuple[int, ...], int]

# Sums of a few log-probabilities of about 10 nats in fp32.
TOLERANCE = {"abs": 2e-5, "rel": 1e-6}


def _tokens(count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCAB_SIZE, (count,), generator=generator).tolist())


# Tokens, and how many at their end are scored.
CASES: dict[str, Case] = {
    "one token of context": (_tokens(4, 0), 3),
    "shorter than the window": (_tokens(12, 1), 4),
    "text as long as the window": (_tokens(POSITIONS + 1, 2), 5),
    "targets as long as the window": (_tokens(POSITIONS + 1, 3), POSITIONS),
    "context longer than the window": (_tokens(3 * POSITIONS, 4), 2),
    "targets fill the window, context is cut": (_tokens(2 * POSITIONS, 5), POSITIONS),
    "targets longer than the window": (_tokens(3 * POSITIONS, 6), 2 * POSITIONS + 5),
}


def _brute_force(reference: Reference, tokens: Sequence[int], num_targets: int) -> WindowScore:
    """Each window of our rule by itself through `transformers`."""
    first = len(tokens) - num_targets
    total, right, start = 0.0, 0, first
    while start < len(tokens):
        end = min(start + POSITIONS, len(tokens))
        seen = tokens[max(0, end - POSITIONS - 1) : end]
        with torch.no_grad():
            scores = reference.theirs(torch.tensor([seen[:-1]])).logits[0].double().log_softmax(-1)
        for place in range(len(seen) - (end - start), len(seen)):
            total += float(scores[place - 1, seen[place]])
            right += int(scores[place - 1].argmax()) == seen[place]
        start = end
    return WindowScore(total, num_targets, right)


def _windows(cases: Sequence[Case]) -> list[list[Window]]:
    return [windows_of(tokens, len(tokens) - num_targets, POSITIONS) for tokens, num_targets in cases]


def _scores_of_rank(
    tp: int, pp: int, models: Sequence[tuple[ModelConfig, Weights]], texts: Sequence[Sequence[Window]], batch_size: int
) -> tuple[list[list[WindowScore]], tuple[int, int, int]]:
    flat, found = [window for text in texts for window in text], []
    for config, weights in models:
        model = model_at(tp, pp, config, weights)
        counts: list[int] = []
        scores = iter(score_windows(model, flat, batch_size, counts.append))
        assert sum(counts) == len(flat)
        found.append([sum((next(scores) for _ in text), WindowScore()) for text in texts])
    return found, (model.mpu.tp_size, model.mpu.pp_size, model.mpu.dp_size)


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    return [gpt2(), llama()]


@pytest.fixture(scope="module")
def expected(references: list[Reference]) -> list[list[WindowScore]]:
    return [[_brute_force(reference, *case) for case in CASES.values()] for reference in references]


def _assert_close(found: list[list[WindowScore]], expected: list[list[WindowScore]]) -> None:
    for scores, wanted in zip(found, expected, strict=True):
        for score, want in zip(scores, wanted, strict=True):
            assert score.log_probability == pytest.approx(want.log_probability, **TOLERANCE)
            assert (score.num_targets, score.num_right) == (want.num_targets, want.num_right)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_log_probabilities_are_those_of_transformers_for_texts_of_any_length(
    batch_size: int, references: list[Reference], expected: list[list[WindowScore]]
) -> None:
    models = [(reference.config, reference.weights) for reference in references]
    found, _ = _scores_of_rank(1, 1, models, _windows(list(CASES.values())), batch_size)
    _assert_close(found, expected)


@pytest.mark.parametrize(("tp", "pp", "dp"), [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1)])
def test_log_probabilities_are_the_same_at_every_layout_on_all_ranks(
    tp: int, pp: int, dp: int, references: list[Reference], expected: list[list[WindowScore]]
) -> None:
    models = [(reference.config, reference.weights) for reference in references]
    texts = _windows(list(CASES.values()))
    for found, layout in run_ranks(
        tp * pp * dp, _scores_of_rank, tp=tp, pp=pp, models=models, texts=texts, batch_size=2
    ):
        assert layout == (tp, pp, dp)
        _assert_close(found, expected)


def test_likeliest_tokens_are_counted_as_right(references: list[Reference]) -> None:
    reference, prompt = references[0], (7, 3, 50)
    tokens = (*prompt, *reference.greedy(prompt, 6))
    model = model_at(1, 1, reference.config, reference.weights)
    (score,) = score_windows(model, windows_of(tokens, 3, POSITIONS), 1)
    assert score.all_right
    wrong = (*tokens[:3], (tokens[3] + 1) % VOCAB_SIZE, *tokens[4:])
    (score,) = score_windows(model, windows_of(wrong, 3, POSITIONS), 1)
    assert not score.all_right
    assert score.num_targets == 6


def test_context_of_a_prefix_lm_is_its_prefix() -> None:
    config = ModelConfig(**SIZES, prefix_lm=True)
    model = model_at(1, 1, config, random_weights(config))
    tokens = _tokens(9, 8)
    (score,) = score_windows(model, windows_of(tokens, 5, POSITIONS), 1)
    logits = model.logits(torch.tensor([tokens[:-1]]), prefix=torch.tensor([5]))
    assert logits is not None
    log_probabilities = logits[0].double().log_softmax(-1)
    expected = sum(float(log_probabilities[place - 1, tokens[place]]) for place in range(5, 9))
    assert score.log_probability == pytest.approx(expected, **TOLERANCE)


def test_scores_that_are_not_finite_are_refused() -> None:
    config = ModelConfig(**SIZES)
    weights = dict(random_weights(config))
    weights["final_layernorm.weight"] = torch.full_like(weights["final_layernorm.weight"], torch.nan)
    with pytest.raises(CheckpointError, match="not finite in float32"):
        score_windows(model_at(1, 1, config, weights), [Window((1, 2), 1)], 1)


def _likeliest(tp: int, rows: list[list[float]], vocab_size: int) -> list[int]:
    mpu = ModelParallelUnit.create(tp, 1, torch.device("cpu"))
    columns = len(rows[0]) // tp
    own = torch.tensor(rows)[:, mpu.tp_rank * columns : (mpu.tp_rank + 1) * columns]
    found: list[int] = vocab_parallel_argmax(own, vocab_size, mpu).tolist()
    return found


def test_likeliest_token_of_a_split_vocabulary_is_the_first_of_several_and_no_padding() -> None:
    rows = [[1.0, 5.0, 5.0, 2.0, 5.0, 9.0], [0.0, 0.0, 0.0, 0.0, 3.0, 9.0], [-9.0, -8.0, -9.0, -9.0, -9.0, 0.0]]
    assert run_ranks(2, _likeliest, tp=2, rows=rows, vocab_size=5) == [[1, 4, 1]] * 2
    # All columns of the last rank are padding.
    assert run_ranks(3, _likeliest, tp=3, rows=rows, vocab_size=4) == [[1, 0, 1]] * 3
