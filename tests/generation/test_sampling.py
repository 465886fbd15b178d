"""Drawn texts: from the right distribution, and the same for a seed whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megatron_ds.errors import CheckpointError
from megatron_ds.generation.generate import generate
from megatron_ds.generation.options import Decoding, Request, Sampling
from megatron_ds.generation.sampling import TokenChooser, probabilities
from tests.dist.pool import run_ranks
from tests.generation.models import (
    PROMPTS,
    VOCAB_SIZE,
    ModelConfig,
    Weights,
    llama,
    model_at,
    texts,
)

FILTERS = (
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(top_k=1),
    Sampling(top_k=5),
    Sampling(top_k=1000),
    Sampling(top_p=0.6),
    Sampling(top_p=0.01),
    Sampling(top_p=1.0),
    Sampling(temperature=1.5, top_k=7, top_p=0.8),
)


def _by_hand(logits: list[float], sampling: Sampling) -> list[float]:
    """Token by token: those that stay, and their shares."""
    scores = [score / sampling.temperature for score in logits]
    order = sorted(range(len(scores)), key=lambda token: -scores[token])[: sampling.top_k]
    weights = {token: float(torch.tensor(scores[token]).exp()) for token in order}
    total, kept = sum(weights.values()), dict[int, float]()
    for token in order:
        if sum(kept.values()) < (sampling.top_p or 1) * total:
            kept[token] = weights[token]
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(len(scores))]


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_probabilities_are_those_of_a_filter_by_hand(sampling: Sampling) -> None:
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(3)) * 2
    expected = torch.tensor([_by_hand(row, sampling) for row in logits.tolist()])
    found = probabilities(logits, sampling)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found > 0, expected > 0)


def test_top_k_keeps_tokens_that_score_alike() -> None:
    found = probabilities(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), Sampling(top_k=2))
    assert (found > 0).tolist() == [[False, True, True, True]]


def _drawn(logits: Tensor, decoding: Decoding, draws: int) -> Tensor:
    """How often each token is chosen, as shares."""
    chooser = TokenChooser([Request((0,))], decoding)
    tokens = torch.cat([chooser.choose(logits, [0]) for _ in range(draws)])
    return torch.bincount(tokens, minlength=logits.shape[-1]) / draws


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    logits, sampling, draws = torch.tensor([[0.3, -1.0, 2.0, 0.1, 1.2, 9.0]]), Sampling(top_k=4), 4_000
    expected = probabilities(logits[:, :5], sampling)[0]
    found = _drawn(logits, Decoding(1, None, 5, sampling), draws)
    assert found[5] == 0, "num_ids leaves the likeliest token out"
    assert found[1] == 0, "top-k leaves the least likely one out"
    # Four standard deviations of a share.
    deviation = (expected * (1 - expected) / draws).sqrt()
    assert bool(((found[:5] - expected).abs() <= 4 * deviation).all())


def test_greedy_takes_the_first_of_the_likeliest_within_num_ids() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 5.0], [1.0, 0.0, 0.0, 5.0]])
    chooser = TokenChooser([Request((0,)), Request((0,), 1)], Decoding(1, None, 3))
    assert chooser.choose(logits, [0, 1]).tolist() == [1, 0]


def test_scores_that_are_not_finite_are_refused() -> None:
    chooser = TokenChooser([Request((0,))], Decoding(1, None, 2))
    with pytest.raises(CheckpointError, match="not finite in float16"):
        chooser.choose(torch.tensor([[0.0, torch.nan]], dtype=torch.float16), [0])


def _sampled(tp: int, pp: int, config: ModelConfig, weights: Weights, seed: int, together: bool = True) -> list[object]:
    decoding = Decoding(8, None, VOCAB_SIZE, Sampling(temperature=1.3, top_k=20, top_p=0.95, seed=seed))
    return [each.tokens for each in texts(model_at(tp, pp, config, weights), PROMPTS, decoding, together=together)]


def test_sampled_texts_follow_from_the_seed_alone() -> None:
    reference = llama()
    arguments = {"config": reference.config, "weights": reference.weights}
    expected = _sampled(1, 1, **arguments, seed=5)
    assert _sampled(1, 1, **arguments, seed=5, together=False) == expected
    assert _sampled(1, 1, **arguments, seed=6) != expected
    for found in run_ranks(4, _sampled, tp=2, pp=2, seed=5, **arguments):
        assert found == expected


def test_samples_of_one_prompt_are_different_texts() -> None:
    reference = llama()
    model = model_at(1, 1, reference.config, reference.weights)
    decoding = Decoding(8, None, VOCAB_SIZE, Sampling())
    found = generate(model, [Request(PROMPTS[1], 0, sample) for sample in range(4)], decoding)
    assert len({each.tokens for each in found}) == 4
