"""The parts of a layer against formulas written out: activations, norms, residual connections, initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_ds.models import SequentialModel, gpt_layers, initialize_weights
from megatron_ds.models.attention import AttentionScheme
from megatron_ds.models.mlp import ParallelMLP
from megatron_ds.models.norms import LayerNorm, RMSNorm
from megatron_ds.models.transformer import EmbeddingDropout, ParallelTransformerLayer
from megatron_ds.mpu import ModelParallelUnit
from tests.models.tiny import tiny_model

MPU = ModelParallelUnit.offline()


def _numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": _gelu,
    "relu": lambda x: x * (x > 0),
    "squared_relu": lambda x: x**2 * (x > 0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "geglu": _gelu,
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
    "reglu": lambda x: x * (x > 0),
    "liglu": lambda x: x,
}


@pytest.mark.parametrize("activation", FORMULAS)
def test_mlp_is_its_formula(activation: str) -> None:
    config = tiny_model(activation=activation, ffn_hidden_size=12)
    mlp = ParallelMLP(config, MPU)
    rows = 24 if config.is_gated else 12
    weights = {
        "wide": _numbers(rows, 32),
        "wide_bias": _numbers(rows),
        "narrow": _numbers(32, 12),
        "bias": _numbers(32),
    }
    with torch.no_grad():
        mlp.dense_h_to_4h.weight.copy_(weights["wide"])
        mlp.dense_h_to_4h.bias.copy_(weights["wide_bias"])  # type: ignore[union-attr]
        mlp.dense_4h_to_h.weight.copy_(weights["narrow"])
        mlp.dense_4h_to_h.bias.copy_(weights["bias"])  # type: ignore[union-attr]
    hidden = _numbers(3, 2, 32)
    inner = hidden @ weights["wide"].T + weights["wide_bias"]
    function = FORMULAS[activation]
    inner = function(inner[..., :12]) * inner[..., 12:] if config.is_gated else function(inner)
    torch.testing.assert_close(mlp(hidden), inner @ weights["narrow"].T + weights["bias"], rtol=1e-4, atol=1e-4)


def test_gated_mlp_of_no_given_width_has_as_many_weights_as_a_plain_one() -> None:
    gated, plain = (
        tiny_model(activation=name, hidden_size=4096, num_attention_heads=32) for name in ("swiglu", "gelu")
    )
    assert (gated.ffn_size, plain.ffn_size) == (10880, 16384)  # Megatron-LM's number: 170 x 64
    assert 3 * gated.ffn_size == pytest.approx(2 * plain.ffn_size, rel=0.01)


def test_rms_norm_by_hand() -> None:
    norm = RMSNorm(tiny_model(layernorm_epsilon=1e-12), 2, MPU)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 10.0]))
    # The mean of 9 and 49 is 29.
    expected = [2 * 3 / math.sqrt(29), 10 * 7 / math.sqrt(29)]
    assert norm(torch.tensor([3.0, 7.0])).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norm_of_an_fp32_stream_gives_the_dtype_of_its_weights(kind: type[LayerNorm] | type[RMSNorm]) -> None:
    norm = kind(tiny_model(), 32, MPU).to(torch.bfloat16)
    hidden = _numbers(3, 32)
    assert norm(hidden).dtype == torch.bfloat16
    torch.testing.assert_close(norm(hidden), kind(tiny_model(), 32, MPU)(hidden).to(torch.bfloat16), rtol=0, atol=0)


def test_fp32_residual_connection_keeps_what_bf16_would_round_away() -> None:
    config = tiny_model(fp32_residual_connection=True)
    layer = ParallelTransformerLayer(config, MPU, AttentionScheme(config, MPU)).to(torch.bfloat16)
    initialize_weights(layer.named_parameters(), 1234, MPU)
    stream = EmbeddingDropout(config, MPU)(_numbers(4, 1, 32).to(torch.bfloat16))
    assert stream.dtype == torch.float32
    assert layer(stream + 1e-4).dtype == torch.float32
    # 1 + 1e-4 is 1 in bf16.
    moved = layer(stream + 1e-4) - layer(stream)
    assert float(moved.detach().median()) == pytest.approx(1e-4, rel=0.05)


class _Parts:
    """A layer whose attention and MLP are known functions, to see how they are put together."""

    def __init__(self, **changes: object) -> None:
        config = tiny_model(**changes)
        self.layer = ParallelTransformerLayer(config, MPU, AttentionScheme(config, MPU))
        self.layer.attention.forward = lambda hidden, document_ids=None: self.attend(hidden)  # type: ignore[method-assign]
        self.layer.mlp.forward = self.mlp  # type: ignore[method-assign]
        with torch.no_grad():
            self.layer.input_layernorm.weight.fill_(2.0)
            self.layer.post_attention_layernorm.weight.fill_(3.0)
        self.first, self.second = self.layer.input_layernorm, self.layer.post_attention_layernorm

    @staticmethod
    def attend(hidden: Tensor) -> Tensor:
        return hidden.cos()

    @staticmethod
    def mlp(hidden: Tensor) -> Tensor:
        return hidden.sin() * 5


def test_residual_connections_are_their_formulas() -> None:
    x = _numbers(3, 2, 32)

    parts = _Parts()
    y = x + parts.attend(parts.first(x))
    assert torch.equal(parts.layer(x), y + parts.mlp(parts.second(y)))

    parts = _Parts(residual_connection="parallel")
    assert torch.equal(parts.layer(x), x + parts.attend(parts.first(x)) + parts.mlp(parts.second(x)))

    parts = _Parts(residual_connection="post_ln")
    y = parts.first(x)
    y = parts.second(y + parts.attend(y))
    assert torch.equal(parts.layer(x), y + parts.mlp(y))

    parts = _Parts(residual_connection="deepnorm", num_layers=8)
    y = parts.first(x)
    y = parts.second(2 * y + parts.attend(y))  # (2 x 8)^(1/4) = 2
    assert torch.equal(parts.layer(x), 2 * y + parts.mlp(y))

    parts = _Parts(residual_connection="deepnorm", deepnorm_alpha=3.0)
    y = parts.first(x)
    y = parts.second(3 * y + parts.attend(y))
    assert torch.equal(parts.layer(x), 3 * y + parts.mlp(y))


def _weights(**changes: object) -> dict[str, Tensor]:
    model = SequentialModel(gpt_layers(tiny_model(hidden_size=256, **changes), MPU))
    initialize_weights(model.named_parameters(), 1234, MPU)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _parts_of_qkv(weight: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    by_group = weight.view(groups, -1, weight.shape[-1])
    return by_group[:, : -2 * 64], by_group[:, -2 * 64 : -64], by_group[:, -64:]


def test_initial_weights_without_scaling_have_one_spread() -> None:
    weights = _weights(use_scaled_init_method=False)
    for name in ("attention.dense", "mlp.dense_4h_to_h", "mlp.dense_h_to_4h"):
        assert float(weights[f"layers.0.{name}.weight"].std()) == pytest.approx(0.02, rel=0.02)


def test_initial_weights_of_deepnorm_are_narrower_in_mlp_values_and_attention_output() -> None:
    weights = _weights(residual_connection="deepnorm", num_query_groups=2)
    beta = (8 * 2) ** -0.25  # 1/2
    query, key, value = _parts_of_qkv(weights["layers.0.attention.query_key_value.weight"], 2)
    assert float(query.std()) == pytest.approx(0.02, rel=0.02)
    assert float(key.std()) == pytest.approx(0.02, rel=0.02)
    assert float(value.std()) == pytest.approx(0.02 * beta, rel=0.02)
    for name in ("attention.dense", "mlp.dense_4h_to_h", "mlp.dense_h_to_4h"):
        assert float(weights[f"layers.1.{name}.weight"].std()) == pytest.approx(0.02 * beta, rel=0.02)
    given = _weights(residual_connection="deepnorm", deepnorm_beta=0.1)
    assert float(given["layers.1.attention.dense.weight"].std()) == pytest.approx(0.002, rel=0.02)


def test_initial_weights_of_xavier_follow_the_sizes_of_a_matrix() -> None:
    weights = _weights(init_method="xavier_normal", activation="swiglu", ffn_hidden_size=512)
    query, key, value = _parts_of_qkv(weights["layers.0.attention.query_key_value.weight"], 4)
    for part in (query, key, value):
        assert float(part.std()) == pytest.approx(1 / 16, rel=0.02)  # sqrt(2 / 512)
    wide, narrow = (weights[f"layers.0.mlp.{name}.weight"] for name in ("dense_h_to_4h", "dense_4h_to_h"))
    assert float(wide.std()) == pytest.approx(math.sqrt(2 / 768), rel=0.02)
    assert float(narrow.std()) == pytest.approx(math.sqrt(2 / 768) / 2, rel=0.02)  # / sqrt(2 x 2 layers)
    assert float(weights["word_embeddings.weight"].std()) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "with_bias"),
    [
        ({}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
        ({"disable_bias_linear": True}, set()),
        ({"disable_bias_linear": True, "add_qkv_bias": True}, {"query_key_value"}),
    ],
)
def test_linear_layers_have_the_biases_that_the_options_say(changes: dict[str, bool], with_bias: set[str]) -> None:
    names = _weights(normalization="RMSNorm", **changes)
    assert {name.split(".")[-2] for name in names if name.endswith("bias")} == with_bias


def test_names_of_a_model_with_every_norm_and_no_positions() -> None:
    names = list(_weights(embed_layernorm=True, qk_layernorm=True, position_embedding_type="rope", num_layers=1))
    assert names[:3] == ["word_embeddings.weight", "embed_layernorm.weight", "embed_layernorm.bias"]
    assert "layers.0.attention.q_layernorm.weight" in names
    assert "layers.0.attention.k_layernorm.bias" in names
    assert not any("position" in name for name in names)


@pytest.mark.parametrize(
    ("changes", "causal", "has_mask", "kv_heads"),
    [
        ({}, True, False, 4),
        ({"position_embedding_type": "rope", "normalization": "RMSNorm", "num_query_groups": 2}, True, False, 2),
        ({"position_embedding_type": "alibi"}, False, True, 4),
        # Kernels that take a mask want as many heads of keys as of queries.
        ({"window_size": 3, "num_query_groups": 2}, False, True, 4),
    ],
)
def test_attention_without_need_for_a_mask_has_none(
    changes: dict[str, object], causal: bool, has_mask: bool, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_model(**changes)
    layer = ParallelTransformerLayer(config, MPU, AttentionScheme(config, MPU))
    initialize_weights(layer.named_parameters(), 1234, MPU)
    attend, seen = F.scaled_dot_product_attention, []

    def recorded(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
        seen.append((options.get("is_causal"), options.get("attn_mask") is not None, key.shape[1], value.shape[1]))
        return attend(query, key, value, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    layer(_numbers(16, 2, 32))
    assert seen == [(causal, has_mask, kv_heads, kv_heads)]
