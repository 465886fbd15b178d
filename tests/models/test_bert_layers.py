"""BERT's list of layers: names, both directions, padding, token types."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.partition import LAYER_CLASSES
from megatron_ds.models import SequentialModel, bert_layers, initialize_weights, model_losses, whole_model_specs
from megatron_ds.mpu import ModelParallelUnit, Topology

MPU = ModelParallelUnit.offline()
LENGTH, TEXT = 16, 12


def _tiny(**changes: Any) -> ModelConfig:
    options = {
        **{"model_type": "bert", "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": LENGTH},
        **{"vocab_size": 61, "make_vocab_size_divisible_by": 1, "hidden_dropout": 0, "attention_dropout": 0},
        **{"init_method_std": 0.2, **changes},
    }
    return ModelConfig(**options)


def _model(config: ModelConfig) -> SequentialModel:
    model = SequentialModel(bert_layers(config, MPU))
    initialize_weights(model.named_parameters(), 1234, MPU)
    return model


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Two samples of 12 tokens in two segments, and 4 of padding."""
    tokens = torch.randint(0, 61, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    places = torch.arange(LENGTH).expand(2, LENGTH)
    return tokens, ((places >= 5) & (places < TEXT)).long(), (places < TEXT).long()


def test_names_are_those_of_megatron() -> None:
    names = whole_model_specs(partial(bert_layers, _tiny(num_layers=1)))
    assert [name for name in names if not name.startswith("layers.")] == [
        "word_embeddings.weight",
        "tokentype_embeddings.weight",
        "position_embeddings.weight",
        "final_layernorm.weight",
        "final_layernorm.bias",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "binary_head.weight",
        "binary_head.bias",
        "lm_head.bias",
        "lm_head.dense.weight",
        "lm_head.dense.bias",
        "lm_head.layernorm.weight",
        "lm_head.layernorm.bias",
    ]


def test_without_the_binary_head_there_is_one_loss_and_no_token_type() -> None:
    config = _tiny(bert_binary_head=False)
    names = {name.split(".")[0] for name in whole_model_specs(partial(bert_layers, config))}
    assert not names & {"pooler", "binary_head", "tokentype_embeddings"}
    assert list(model_losses(config, MPU)) == ["lm_loss"]
    assert list(model_losses(_tiny(), MPU)) == ["lm_loss", "sop_loss"]
    assert isinstance(_model(config)(_inputs()), Tensor)


def test_bias_of_the_decoder_is_cut_as_the_vocabulary_is() -> None:
    specs = whole_model_specs(partial(bert_layers, _tiny()), Topology(tp_size=2))
    assert specs["lm_head.bias"].local_shape(2) == (31,)
    assert specs["word_embeddings.weight"].local_shape(2) == (31, 32)


def test_classes_are_those_that_a_partition_method_is_checked_against() -> None:
    found: set[str] = set()
    for options in (
        {},
        {"position_embedding_type": "rope", "normalization": "RMSNorm"},
        {"output_head": "classification", "num_classes": 3},
    ):
        found |= {layer.module_type.__name__ for layer in bert_layers(_tiny(**options), MPU)}
    assert found == set(LAYER_CLASSES["bert"])


@pytest.mark.parametrize("changes", [{}, {"residual_connection": "post_ln"}, {"position_embedding_type": "rope"}])
def test_tokens_see_both_directions_and_no_padding(changes: dict[str, Any]) -> None:
    model = _model(_tiny(**changes))
    tokens, types, mask = _inputs()
    scores, order = model((tokens, types, mask))
    assert scores.shape == (LENGTH, 2, 61)
    assert order.shape == (2, 2)

    padding, last = tokens.clone(), tokens.clone()
    padding[:, TEXT:] = (padding[:, TEXT:] + 1) % 61
    last[:, TEXT - 1] = (last[:, TEXT - 1] + 1) % 61
    same, same_order = model((padding, types, mask))
    torch.testing.assert_close(same[:TEXT], scores[:TEXT], rtol=0, atol=1e-6)
    torch.testing.assert_close(same_order, order, rtol=0, atol=1e-6)
    other, other_order = model((last, types, mask))
    assert (other[:TEXT] - scores[:TEXT]).abs().amax(dim=(1, 2)).min() > 1e-6
    assert (other_order - order).abs().min() > 1e-6


def test_token_types_change_the_scores() -> None:
    model = _model(_tiny())
    tokens, types, mask = _inputs()
    scores, order = model((tokens, types, mask))
    other, other_order = model((tokens, torch.zeros_like(types), mask))
    assert (other - scores).abs().max() > 1e-3
    assert (other_order - order).abs().max() > 1e-3
