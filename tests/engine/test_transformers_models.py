"""Each model family computes what Hugging Face's does: the same logits from the same weights, at any TP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.tiny_run import SEQ_LENGTH, VOCAB_SIZE, Case, global_batch
from megatron_ds.checkpoint.huggingface import ARCHITECTURES
from megatron_ds.checkpoint.huggingface.convert import our_weights
from megatron_ds.models import SequentialModel, gpt_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from tests.dist.pool import run_ranks

HEADS, HIDDEN, LAYERS, FFN = 4, 32, 4, 96
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """One architecture, theirs and ours.

    Attributes:
        model: the name of their class; its config has the same beginning.
        options: arguments of their config.
        flags: our command line.
    """

    model: str
    options: Mapping[str, Any]
    flags: tuple[str, ...]


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
    "gpt2": Family(
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCAB_SIZE,
            "n_positions": SEQ_LENGTH,
            "n_embd": HIDDEN,
            "n_layer": LAYERS,
            "n_head": HEADS,
        },
        (),
    ),
    "bloom": Family("BloomForCausalLM", _BLOOM, _BLOOM_FLAGS),
    "bloom, post-LN": Family(
        "BloomForCausalLM",
        {**_BLOOM, "apply_residual_connection_post_layernorm": True},
        (*_BLOOM_FLAGS, "--apply-residual-connection-post-layernorm"),
    ),
    "pythia": Family(
        "GPTNeoXForCausalLM",
        {**_NEOX, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
        (*_NEOX_FLAGS, "--rotary-percent", "0.25", "--parallel-residual"),
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
    ),
    "opt": Family(
        "OPTForCausalLM",
        {**_COMMON, "ffn_dim": FFN, "word_embed_proj_dim": HIDDEN, "do_layer_norm_before": True},
        ("--activation", "relu", "--ffn-hidden-size", str(FFN)),
    ),
    "llama 3.1": Family(
        "LlamaForCausalLM",
        {**_LLAMA, "rope_parameters": _LLAMA3_SCALING},
        (
            *_LLAMA_FLAGS,
            *("--use-rope-scaling", "--rope-scaling-factor", "4", "--rope-original-max-positions", "8"),
        ),
    ),
    "llama, one head of keys": Family(
        "LlamaForCausalLM", {**_LLAMA, "num_key_value_heads": 1}, (*_LLAMA_FLAGS, "--num-query-groups", "1")
    ),
    "mistral": Family("MistralForCausalLM", {**_LLAMA, "sliding_window": 5}, (*_LLAMA_FLAGS, "--window-size", "5")),
    "qwen2": Family("Qwen2ForCausalLM", _LLAMA, (*_LLAMA_FLAGS, "--add-qkv-bias")),
    "qwen3": Family(
        "Qwen3ForCausalLM", {**_LLAMA, "head_dim": 16}, (*_LLAMA_FLAGS, "--kv-channels", "16", "--qk-layernorm")
    ),
}


@dataclass(frozen=True)
class StateDict:
    """A state dict as files of weights are read."""

    tensors: Weights

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.tensors[name].dtype

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


def _theirs(family: Family) -> tuple[Weights, Tensor]:
    """Weights in which nothing is zero or one, by our names, and their logits [B, S, V]."""
    import transformers

    class_of_config = family.model.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + "Config"
    config = getattr(transformers, class_of_config)(**family.options)
    model = getattr(transformers, family.model)._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms too: a bias of zero can be forgotten and nobody sees it.
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        logits = model(global_batch(0, 4).tokens).logits
    ours = Case(1, more=family.flags).resolve().run.model
    files = StateDict({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    weights = our_weights(ARCHITECTURES[config.model_type][0], ours, files, "transformers")
    return {name: tensor.contiguous() for name, tensor in weights.items()}, logits


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
    weights, expected = _theirs(family)
    assert float(expected.std()) > 0.1
    for tp in (1, 2):
        for logits in run_ranks(tp, _logits, tp=tp, flags=family.flags, weights=weights):
            assert logits.shape == expected.shape
            assert float((logits - expected).abs().max()) <= 1e-5
