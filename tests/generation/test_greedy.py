"""Greedy texts: those of `transformers`, whatever else is in the batch and however the model is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from megatron_ds.config.blocks import ModelConfig
from tests.dist.pool import run_ranks
from tests.generation.models import (
    LAYERS,
    POSITIONS,
    PROMPTS,
    SIZES,
    Reference,
    Weights,
    gpt2,
    greedy,
    llama,
    model_at,
    random_weights,
    texts,
)

LAYOUTS = ((2, 1), (1, 2), (2, 2))
NEW_TOKENS = 10


@pytest.fixture(scope="module", params=[gpt2, llama], ids=["gpt2", "llama"])
def reference(request: pytest.FixtureRequest) -> Reference:
    make: Callable[[], Reference] = request.param
    return make()


@pytest.mark.parametrize("together", [False, True], ids=["each alone", "one batch"])
def test_greedy_texts_are_those_of_transformers(reference: Reference, together: bool) -> None:
    model = model_at(1, 1, reference.config, reference.weights)
    found = [list(each.tokens) for each in texts(model, PROMPTS, greedy(NEW_TOKENS), together=together)]
    assert found == [reference.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in found}) == len(PROMPTS)
    assert any(len(set(tokens)) > 3 for tokens in found), "a model that says one thing only shows nothing"


def _texts_of_rank(
    tp: int, pp: int, models: Sequence[tuple[ModelConfig, Weights]]
) -> tuple[list[list[tuple[int, ...]]], int]:
    """Texts of each model, in a batch and then alone, and how many layers the last model has on this rank."""
    found = []
    for config, weights in models:
        model = model_at(tp, pp, config, weights)
        for together in (True, False):
            found.append([each.tokens for each in texts(model, PROMPTS, greedy(NEW_TOKENS), together=together)])
    return found, model.num_layers


@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
def test_greedy_texts_are_the_same_at_every_layout_on_all_ranks(reference: Reference, tp: int, pp: int) -> None:
    expected = [tuple(reference.greedy(prompt, NEW_TOKENS)) for prompt in PROMPTS]
    results = run_ranks(tp * pp, _texts_of_rank, tp=tp, pp=pp, models=[(reference.config, reference.weights)])
    assert [found for found, _ in results] == [[expected, expected]] * (tp * pp)
    assert len({num_layers for _, num_layers in results}) == pp, "stages hold parts of the model"
    assert all(num_layers < LAYERS + 4 for _, num_layers in results) == (pp > 1)


# What changes the way through the model: masks, angles, what travels between stages.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "ALiBi, embedding norm": {"position_embedding_type": "alibi", "embed_layernorm": True},
    "prefix-LM": {"prefix_lm": True, "position_embedding_type": "rope"},
    "prefix-LM, learned positions": {"prefix_lm": True},
    "window, one head of keys": {"window_size": 4, "num_query_groups": 1, "position_embedding_type": "rope"},
    "deepnorm, padded vocabulary": {"residual_connection": "deepnorm", "pad_vocab_size_to": 64},
}


def test_variants_of_models_have_the_same_texts_cut_and_whole() -> None:
    models = [(config := ModelConfig(**SIZES, **options), random_weights(config)) for options in VARIANTS.values()]
    whole, _ = _texts_of_rank(1, 1, models)
    for found, _ in run_ranks(4, _texts_of_rank, tp=2, pp=2, models=models):
        assert found == whole
    assert all(whole[place] == whole[place + 1] for place in range(0, len(whole), 2)), "in a batch as alone"
    assert len({str(tokens) for tokens in whole}) == len(models)


def _texts_in_16_bits(pp: int, models: Sequence[tuple[ModelConfig, Weights]]) -> list[list[tuple[int, ...]]]:
    return [
        [each.tokens for each in texts(model_at(1, pp, *model, dtype), PROMPTS, greedy(4), together=True)]
        for model in models
        for dtype in (torch.bfloat16, torch.float16)
    ]


def test_texts_in_16_bits_travel_between_stages_in_the_dtype_of_the_stream() -> None:
    configs = [ModelConfig(**SIZES, fp32_residual_connection=in_fp32) for in_fp32 in (False, True)]
    models = [(config, random_weights(config)) for config in configs]
    whole = _texts_in_16_bits(1, models)
    assert run_ranks(2, _texts_in_16_bits, pp=2, models=models) == [whole, whole]


def test_prefix_of_prefix_lm_is_seen_in_both_directions() -> None:
    config = ModelConfig(**SIZES, prefix_lm=True)
    model = model_at(1, 1, config, random_weights(config))
    tokens = torch.tensor([PROMPTS[2]])
    causal = model.logits(tokens)
    both = model.logits(tokens, prefix=torch.tensor([5]))
    assert causal is not None
    assert both is not None
    assert not torch.allclose(causal[:, 0], both[:, 0])
    last = model.logits(tokens, prefix=torch.tensor([5]), at=torch.tensor([8]))
    assert last is not None
    torch.testing.assert_close(last, both[:, 8])


def test_logits_have_no_padding_and_are_wanted_at_one_place_or_all() -> None:
    config = ModelConfig(**SIZES)
    model = model_at(1, 1, config, random_weights(config))
    tokens = torch.tensor([PROMPTS[2], PROMPTS[2][::-1]])
    everywhere = model.logits(tokens)
    assert everywhere is not None
    assert everywhere.shape == (2, 9, SIZES["vocab_size"])
    some = model.logits(tokens, at=torch.tensor([2, 8]))
    assert some is not None
    torch.testing.assert_close(some, torch.stack([everywhere[0, 2], everywhere[1, 8]]))


def test_rows_stop_at_end_of_document_each_by_itself(reference: Reference) -> None:
    free = [reference.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
    eod_id = free[1][3]
    expected = [tokens[: tokens.index(eod_id) + 1] if eod_id in tokens else tokens for tokens in free]
    assert len({len(tokens) for tokens in expected}) > 1
    model = model_at(1, 1, reference.config, reference.weights)
    for together in (True, False):
        found = texts(model, PROMPTS, greedy(NEW_TOKENS, eod_id), together=together)
        assert [list(each.tokens) for each in found] == expected
        assert [each.is_ended for each in found] == [tokens[-1] == eod_id for tokens in expected]


def test_texts_may_fill_all_positions(reference: Reference) -> None:
    model = model_at(1, 1, reference.config, reference.weights)
    (found,) = texts(model, PROMPTS[:1], greedy(POSITIONS - 1), together=True)
    assert list(found.tokens) == reference.greedy(PROMPTS[0], POSITIONS - 1)
