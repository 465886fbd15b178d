"""Each model family computes what Hugging Face's does: the same logits from the same weights.

GPT-2 is in test_transformers_gpt2.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.tiny_run import SEQ_LENGTH, VOCAB_SIZE, Case, global_batch
from megatron_ds.models import SequentialModel, gpt_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from tests.dist.pool import run_ranks

HEADS, HIDDEN, LAYERS, FFN = 4, 32, 4, 96
Weights = dict[str, Tensor]


def _fused(query: Tensor, key: Tensor, value: Tensor, groups: int) -> Tensor:
    """Three projections as one, ordered group by group."""
    parts = [part.view(groups, -1, *part.shape[1:]) for part in (query, key, value)]
    return torch.cat(parts, 1).flatten(0, 1)


def _renamed(theirs: Weights, names: Mapping[str, str]) -> Weights:
    """Our names for theirs, layer by layer; `{}` is the number of a layer."""
    ours = {}
    for their_name, our_name in names.items():
        for layer in range(LAYERS) if "{}" in their_name else [0]:
            for kind in ("weight", "bias"):
                tensor = theirs.get(f"{their_name.format(layer)}.{kind}")
                if tensor is not None:
                    ours[f"{our_name.format(layer)}.{kind}"] = tensor
    return ours


def _with_fused_qkv(theirs: Weights, ours: Weights, attention: str, groups: int) -> Weights:
    for layer in range(LAYERS):
        for kind in ("weight", "bias"):
            names = [f"{attention.format(layer)}.{part}_proj.{kind}" for part in "qkv"]
            if names[0] in theirs:
                query, key, value = (theirs[name] for name in names)
                ours[f"layers.{layer}.attention.query_key_value.{kind}"] = _fused(query, key, value, groups)
    return ours


def _bloom_weights(theirs: Weights) -> Weights:
    return _renamed(
        theirs,
        {
            "transformer.word_embeddings": "word_embeddings",
            "transformer.word_embeddings_layernorm": "embed_layernorm",
            "transformer.h.{}.input_layernorm": "layers.{}.input_layernorm",
            "transformer.h.{}.self_attention.query_key_value": "layers.{}.attention.query_key_value",
            "transformer.h.{}.self_attention.dense": "layers.{}.attention.dense",
            "transformer.h.{}.post_attention_layernorm": "layers.{}.post_attention_layernorm",
            "transformer.h.{}.mlp.dense_h_to_4h": "layers.{}.mlp.dense_h_to_4h",
            "transformer.h.{}.mlp.dense_4h_to_h": "layers.{}.mlp.dense_4h_to_h",
            "transformer.ln_f": "final_layernorm",
        },
    )


def _neox_weights(theirs: Weights) -> Weights:
    return _renamed(
        theirs,
        {
            "gpt_neox.embed_in": "word_embeddings",
            "gpt_neox.layers.{}.input_layernorm": "layers.{}.input_layernorm",
            "gpt_neox.layers.{}.attention.query_key_value": "layers.{}.attention.query_key_value",
            "gpt_neox.layers.{}.attention.dense": "layers.{}.attention.dense",
            "gpt_neox.layers.{}.post_attention_layernorm": "layers.{}.post_attention_layernorm",
            "gpt_neox.layers.{}.mlp.dense_h_to_4h": "layers.{}.mlp.dense_h_to_4h",
            "gpt_neox.layers.{}.mlp.dense_4h_to_h": "layers.{}.mlp.dense_4h_to_h",
            "gpt_neox.final_layer_norm": "final_layernorm",
            "embed_out": "lm_head",
            "lm_head": "lm_head",
        },
    )


def _opt_weights(theirs: Weights) -> Weights:
    ours = _renamed(
        theirs,
        {
            "model.decoder.embed_tokens": "word_embeddings",
            "model.decoder.layers.{}.self_attn_layer_norm": "layers.{}.input_layernorm",
            "model.decoder.layers.{}.self_attn.out_proj": "layers.{}.attention.dense",
            "model.decoder.layers.{}.final_layer_norm": "layers.{}.post_attention_layernorm",
            "model.decoder.layers.{}.fc1": "layers.{}.mlp.dense_h_to_4h",
            "model.decoder.layers.{}.fc2": "layers.{}.mlp.dense_4h_to_h",
            "model.decoder.final_layer_norm": "final_layernorm",
        },
    )
    # Their first two rows are for padding and never used.
    ours["position_embeddings.weight"] = theirs["model.decoder.embed_positions.weight"][2:]
    return _with_fused_qkv(theirs, ours, "model.decoder.layers.{}.self_attn", HEADS)


def _llama_weights(theirs: Weights, groups: int = 2) -> Weights:
    ours = _renamed(
        theirs,
        {
            "model.embed_tokens": "word_embeddings",
            "model.layers.{}.input_layernorm": "layers.{}.input_layernorm",
            "model.layers.{}.self_attn.q_norm": "layers.{}.attention.q_layernorm",
            "model.layers.{}.self_attn.k_norm": "layers.{}.attention.k_layernorm",
            "model.layers.{}.self_attn.o_proj": "layers.{}.attention.dense",
            "model.layers.{}.post_attention_layernorm": "layers.{}.post_attention_layernorm",
            "model.layers.{}.mlp.down_proj": "layers.{}.mlp.dense_4h_to_h",
            "model.norm": "final_layernorm",
            "lm_head": "lm_head",
        },
    )
    for layer in range(LAYERS):
        pair = [theirs[f"model.layers.{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        ours[f"layers.{layer}.mlp.dense_h_to_4h.weight"] = torch.cat(pair)
    return _with_fused_qkv(theirs, ours, "model.layers.{}.self_attn", groups)


def _one_group(theirs: Weights) -> Weights:
    return _llama_weights(theirs, groups=1)


@dataclass(frozen=True)
class Family:
    """One architecture, theirs and ours.

    Attributes:
        model: the name of their class; its config has the same beginning.
        options: arguments of their config.
        flags: our command line.
        weights: from their state dict to our canonical names.
    """

    model: str
    options: Mapping[str, Any]
    flags: tuple[str, ...]
    weights: Callable[[Weights], Weights]


_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": SEQ_LENGTH,
}
_LLAMA = {**_COMMON, "intermediate_size": FFN, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
_LLAMA_FLAGS = (
    *("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--ffn-hidden-size", str(FFN)),
    *("--num-query-groups", "2", "--disable-bias-linear", "--untie-embeddings-and-output-weights"),
)
_BLOOM = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
_BLOOM_FLAGS = ("--position-embedding-type", "alibi", "--embed-layernorm")
_NEOX = {**_COMMON, "intermediate_size": 4 * HIDDEN}
_NEOX_FLAGS = ("--position-embedding-type", "rope", "--untie-embeddings-and-output-weights", "--activation", "gelu")
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}

FAMILIES = {
    "bloom": Family("BloomForCausalLM", _BLOOM, _BLOOM_FLAGS, _bloom_weights),
    "bloom, post-LN": Family(
        "BloomForCausalLM",
        {**_BLOOM, "apply_residual_connection_post_layernorm": True},
        (*_BLOOM_FLAGS, "--apply-residual-connection-post-layernorm"),
        _bloom_weights,
    ),
    "pythia": Family(
        "GPTNeoXForCausalLM",
        {**_NEOX, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
        (*_NEOX_FLAGS, "--rotary-percent", "0.25", "--parallel-residual"),
        _neox_weights,
    ),
    "neox, one after the other": Family(
        "GPTNeoXForCausalLM",
        {
            **_NEOX,
            "use_parallel_residual": False,
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 500.0,
                "partial_rotary_factor": 1.0,
            },
        },
        (*_NEOX_FLAGS, "--rotary-base", "500", "--rotary-seq-len-interpolation-factor", "2"),
        _neox_weights,
    ),
    "opt": Family(
        "OPTForCausalLM",
        {**_COMMON, "ffn_dim": FFN, "word_embed_proj_dim": HIDDEN, "do_layer_norm_before": True},
        ("--activation", "relu", "--ffn-hidden-size", str(FFN)),
        _opt_weights,
    ),
    "llama 3.1": Family(
        "LlamaForCausalLM",
        {**_LLAMA, "rope_parameters": _LLAMA3_SCALING},
        (
            *_LLAMA_FLAGS,
            *("--use-rope-scaling", "--rope-scaling-factor", "4", "--rope-original-max-positions", "8"),
        ),
        _llama_weights,
    ),
    "llama, one head of keys": Family(
        "LlamaForCausalLM",
        {**_LLAMA, "num_key_value_heads": 1},
        (*_LLAMA_FLAGS, "--num-query-groups", "1"),
        _one_group,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        {**_LLAMA, "sliding_window": 5},
        (*_LLAMA_FLAGS, "--window-size", "5"),
        _llama_weights,
    ),
    "qwen2": Family("Qwen2ForCausalLM", _LLAMA, (*_LLAMA_FLAGS, "--add-qkv-bias"), _llama_weights),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {**_LLAMA, "head_dim": 16},
        (*_LLAMA_FLAGS, "--kv-channels", "16", "--qk-layernorm"),
        _llama_weights,
    ),
}


def _theirs(family: Family) -> tuple[Weights, Tensor]:
    """Weights in which nothing is zero or one, and their logits [B, S, V]."""
    import transformers

    config = getattr(transformers, family.model.replace("ForCausalLM", "Config"))(**family.options)
    model = getattr(transformers, family.model)._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms too: a bias of zero can be forgotten and nobody sees it.
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        logits = model(global_batch(0, 4).tokens).logits
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, logits


def _logits(tp: int, flags: tuple[str, ...], weights: Weights) -> Tensor:
    """Whole logits [B, S, V] of our model with these weights."""
    mpu = ModelParallelUnit.create(tp, 1, torch.device("cpu"))
    model = SequentialModel(gpt_layers(Case(tp, more=flags).resolve().run.model, mpu)).eval()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shard_spec(parameter).shard(weights[name], mpu.tp_rank, tp))
        slice_of_logits = model(global_batch(0, 4).tokens).transpose(0, 1).contiguous()
    slices = [torch.empty_like(slice_of_logits) for _ in range(tp)]
    dist.all_gather(slices, slice_of_logits, group=mpu.tp_group)
    return torch.cat(slices, -1)[..., :VOCAB_SIZE]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str) -> None:
    family = FAMILIES[name]
    theirs, expected = _theirs(family)
    weights = family.weights(theirs)
    assert float(expected.std()) > 0.1
    for tp in (1, 2):
        for logits in run_ranks(tp, _logits, tp=tp, flags=family.flags, weights=weights):
            assert logits.shape == expected.shape
            assert float((logits - expected).abs().max()) <= 1e-5
