"""Documents inside a sample: positions and attention (field report D21)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_ds.config.blocks import DataConfig, ModelConfig
from megatron_ds.data.batch import Batch, make_batch
from megatron_ds.data.boundaries import DocumentBoundaries
from megatron_ds.models import LayerDef, SequentialModel, gpt_layers, initialize_weights
from megatron_ds.models.attention import document_mask
from megatron_ds.models.documents import document_positions
from megatron_ds.mpu import ModelParallelUnit

EOD = 60
NAMES = {**{letter: number for number, letter in enumerate("abcdefgh")}, "E": EOD}
SAMPLES = ("a b E c d E e", "E a b c d e f", "a b c d e f E", "a E E b E E E", "a b c d e f g", "E E E E E E E")
SWITCHES = tuple(product((False, True), repeat=3))


class _Expected(NamedTuple):
    positions: list[int]
    attends: list[list[bool]]
    loss_mask: list[float]


def _reference(tokens: list[int], reset_positions: bool, reset_attention: bool, mask_loss: bool) -> _Expected:
    """What Megatron's ``get_ltor_masks_and_position_ids`` gives, one token at a time."""
    positions, attends, loss_mask, start = [], [], [], 0
    for place, token in enumerate(tokens):
        positions.append(place - start if reset_positions else place)
        first = start if reset_attention else 0
        attends.append([first <= other <= place for other in range(len(tokens))])
        loss_mask.append(0.0 if mask_loss and token == EOD else 1.0)
        if token == EOD:
            start = place + 1
    return _Expected(positions, attends, loss_mask)


def _tokens(text: str) -> list[int]:
    return [NAMES[name] for name in text.split()]


def _layers(reset_positions: bool, reset_attention: bool) -> list[LayerDef]:
    config = ModelConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        seq_length=16,
        vocab_size=61,
        make_vocab_size_divisible_by=1,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    mpu = ModelParallelUnit.offline()
    return gpt_layers(config, mpu, reset_position_ids=reset_positions, reset_attention_mask=reset_attention)


def _model(reset_positions: bool, reset_attention: bool) -> SequentialModel:
    model = SequentialModel(_layers(reset_positions, reset_attention))
    initialize_weights(model.named_parameters(), 1234, ModelParallelUnit.offline())
    return model


def _batch(samples: list[list[int]], reset_positions: bool, reset_attention: bool, mask_loss: bool) -> Batch:
    data = DataConfig(
        eod_id=EOD,
        reset_position_ids=reset_positions,
        reset_attention_mask=reset_attention,
        eod_mask_loss=mask_loss,
    )
    rows = [np.array([*tokens, 1]) for tokens in samples]
    return make_batch(rows, vocab_size=61, boundaries=DocumentBoundaries.of(data))


def _positions_used(model: SequentialModel, inputs: Any) -> list[list[int]]:
    """The rows of the position embedding that the model adds, by what comes out when row n holds the number n."""
    layer = model.position_embeddings
    seen: list[tuple[Any, Any]] = []
    handle = layer.register_forward_hook(lambda _, entered, left: seen.append((entered[0], left)))
    with torch.no_grad():
        layer.weight.copy_(torch.arange(16.0).unsqueeze(1).expand(-1, 32))  # type: ignore[operator, union-attr]
        model(inputs)
    handle.remove()
    entered, left = (part[0] if isinstance(part, tuple) else part for part in seen[0])
    return (left - entered)[..., 0].round().long().transpose(0, 1).tolist()


def _attention_used(model: SequentialModel, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[list[bool]]]:
    """Which keys each query looks at in the last layer: equal scores and one-hot values show the probabilities."""
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention
    seen: list[Tensor] = []

    def recorded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        one_hot = torch.eye(key.shape[-2]).expand(*key.shape[:-1], -1)
        seen.append(attend(torch.zeros_like(query), torch.zeros_like(key), one_hot, **options))
        return attend(query, key, value, **options)

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", recorded)
        model(inputs)
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])
    return (seen[1][:, 0] > 0).tolist()


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_positions_attention_and_loss_mask_are_those_of_a_loop(
    switches: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [_tokens(text) for text in SAMPLES]
    expected = [_reference(tokens, *switches) for tokens in samples]
    batch = _batch(samples, *switches)
    model = _model(*switches[:2])
    assert batch.loss_mask.tolist() == [each.loss_mask for each in expected]
    assert _attention_used(model, batch.inputs, monkeypatch) == [each.attends for each in expected]
    assert _positions_used(model, batch.inputs) == [each.positions for each in expected]


def test_each_document_of_a_sample_has_the_scores_that_it_has_alone() -> None:
    model = _model(True, True)
    plain = _model(False, False)
    samples = [_tokens("a b E c d E e f g E h"), _tokens("E E a b c d e f E a b")]
    packed = model(_batch(samples, True, True, False).inputs)
    differs = 0.0
    for row, tokens in enumerate(samples):
        start = 0
        for end in [place + 1 for place, token in enumerate(tokens) if token == EOD] + [len(tokens)]:
            alone = plain(torch.tensor([tokens[start:end]]))
            torch.testing.assert_close(packed[start:end, row], alone[:, 0], rtol=0, atol=1e-6)
            together = plain(torch.tensor([tokens]))[start:end, 0]
            differs = max(differs, float((together - alone[:, 0]).detach().abs().max()))
            start = end
    # Without the switches a document's scores depend on what stands before it.
    assert differs > 1e-3


@pytest.mark.parametrize("switches", [(True, False), (False, True), (True, True)])
def test_switches_leave_the_dealing_of_layers_to_stages_alone(switches: tuple[bool, bool]) -> None:
    ours, theirs = (
        [(layer.name, layer.module_type) for layer in _layers(*each)] for each in (switches, (False, False))
    )
    assert ours == theirs


@pytest.mark.parametrize("switches", [(True, False), (False, True), (True, True)])
def test_switches_leave_weights_and_names_alone(switches: tuple[bool, bool]) -> None:
    ours, theirs = (dict(_model(*each).named_parameters()) for each in (switches, (False, False)))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("switches", [(True, False), (False, True), (True, True)])
def test_sample_of_one_document_has_the_scores_of_the_plain_model(switches: tuple[bool, bool]) -> None:
    samples = [_tokens("a b c d e f g h"), _tokens("h g f e d c b E")]
    batch = _batch(samples, *switches, False)
    torch.testing.assert_close(_model(*switches)(batch.inputs), _model(False, False)(batch.tokens), rtol=0, atol=1e-6)


def test_512_documents_of_one_token_see_themselves_alone() -> None:
    ids = torch.arange(512, dtype=torch.int32).unsqueeze(0)
    assert not document_positions(ids).any()
    assert torch.equal(document_mask(ids), torch.eye(512, dtype=torch.bool).expand(1, 1, -1, -1))
