"""Small models of transformers, one for each thing that the architectures have and have not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE, HIDDEN, LAYERS, HEADS, POSITIONS = 67, 32, 2, 4, 32

_GPT2 = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": POSITIONS,
}
_BLOOM = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "seq_length": POSITIONS}
_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}
_NEOX = {**_COMMON, "intermediate_size": 80}
_OPT = {**_COMMON, "ffn_dim": 96, "word_embed_proj_dim": HIDDEN}
_LLAMA = {**_COMMON, "intermediate_size": 80, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
_BERT = {**_COMMON, "intermediate_size": 80, "layer_norm_eps": 1e-6, "num_hidden_layers": 3}
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}


def _partial(kind: str, percent: float, **numbers: float) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, "partial_rotary_factor": percent, **numbers}


@dataclass(frozen=True)
class Family:
    """One small model.

    Attributes:
        name: of the class without its ending.
        options: of its config.
        ours: what some options of ours have to become.
        ending: of the name of the class.
        arguments: of the class, besides its config.
    """

    name: str
    options: Mapping[str, Any]
    ours: Mapping[str, Any] = field(default_factory=dict)
    ending: str = "CausalLM"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config_name(self) -> str:
        """Name of the config's class."""
        return self.name.removesuffix("LMHead").removesuffix("For") + "Config"

    @property
    def class_name(self) -> str:
        """Name of the class."""
        return self.name + ("Model" if self.name.endswith("LMHead") else self.ending)


def _bert(ending: str, options: Mapping[str, Any], arguments: Mapping[str, Any] | None = None, **ours: Any) -> Family:
    same = {"model_type": "bert", "residual_connection": "post_ln"}
    name = "Bert" if ending == "Model" else "BertFor"
    return Family(name, {**_BERT, **options}, {**same, **ours}, ending, arguments or {})


FAMILIES = {
    "gpt2": Family("GPT2LMHead", _GPT2, {"position_embedding_type": "learned_absolute", "activation": "gelu_tanh"}),
    "gpt2, untied, exact gelu": Family(
        "GPT2LMHead",
        {**_GPT2, "tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 48},
        {"untie_embeddings_and_output_weights": True, "activation": "gelu", "ffn_hidden_size": 48},
    ),
    "bloom": Family("BloomFor", _BLOOM, {"position_embedding_type": "alibi", "embed_layernorm": True}),
    "bloom, post-LN, 6 heads, untied": Family(
        "BloomFor",
        {
            **_BLOOM,
            "apply_residual_connection_post_layernorm": True,
            "n_head": 6,
            "hidden_size": 36,
            "tie_word_embeddings": False,
        },
        {"residual_connection": "post_ln", "num_attention_heads": 6, "untie_embeddings_and_output_weights": True},
    ),
    "pythia": Family(
        "GPTNeoXFor",
        {**_NEOX, "rope_parameters": _partial("default", 0.25)},
        {"residual_connection": "parallel", "rotary_percent": 0.25},
    ),
    "neox, whole heads, scaled, tied": Family(
        "GPTNeoXFor",
        {
            **_NEOX,
            "use_parallel_residual": False,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_fast",
            "rope_parameters": _partial("linear", 1.0, factor=2.0),
        },
        {"residual_connection": "pre_ln", "rotary_seq_len_interpolation_factor": 2.0, "activation": "gelu_tanh"},
    ),
    "opt": Family("OPTFor", _OPT, {"activation": "relu", "ffn_hidden_size": 96}),
    "opt, no biases, untied": Family(
        "OPTFor",
        {**_OPT, "enable_bias": False, "activation_function": "gelu", "tie_word_embeddings": False},
        {"disable_bias_linear": True, "activation": "gelu"},
    ),
    "llama 3.1": Family(
        "LlamaFor",
        {**_LLAMA, "rope_parameters": _LLAMA3_SCALING},
        {"use_rope_scaling": True, "rope_original_max_positions": 8, "num_query_groups": 2, "rotary_base": 500.0},
    ),
    "llama, biases, one head of keys, tied, wide heads": Family(
        "LlamaFor",
        {
            **_LLAMA,
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "head_dim": 12,
            "hidden_act": "gelu",
        },
        {"disable_bias_linear": False, "num_query_groups": 1, "kv_channels": 12, "activation": "geglu"},
    ),
    "mistral": Family("MistralFor", {**_LLAMA, "sliding_window": 5}, {"window_size": 5, "activation": "swiglu"}),
    "qwen2": Family("Qwen2For", _LLAMA, {"add_qkv_bias": True, "disable_bias_linear": True, "window_size": None}),
    "qwen2, window": Family(
        "Qwen2For",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
        {"window_size": 7},
    ),
    "qwen3": Family("Qwen3For", {**_LLAMA, "head_dim": 16}, {"qk_layernorm": True, "kv_channels": 16}),
    "bert": _bert("PreTraining", {}, output_head="lm", bert_binary_head=True, token_types=2, layernorm_epsilon=1e-6),
    "bert, masked tokens, other GELU": _bert(
        "MaskedLM", {"hidden_act": "gelu_new"}, bert_binary_head=False, token_types=2, activation="gelu_tanh"
    ),
    "bert, no head, 3 token types": _bert("Model", {"type_vocab_size": 3}, output_head="none", token_types=3),
    "bert, no pooler, ReLU": _bert(
        "Model", {"hidden_act": "relu"}, {"add_pooling_layer": False}, bert_binary_head=False, activation="relu"
    ),
    "bert, 3 classes": _bert("SequenceClassification", {"num_labels": 3}, output_head="classification", num_classes=3),
    "bert, a number": _bert("SequenceClassification", {"num_labels": 1}, num_classes=1),
    "bert, choices": _bert("MultipleChoice", {}, output_head="multiple_choice", num_classes=None),
}


def save(family: Family, folder: Path, **arguments: Any) -> Any:
    """Saves a model in which nothing is zero or one, and gives it back: a bias of zero can be forgotten unseen."""
    import transformers

    config = getattr(transformers, family.config_name)(
        **family.options, bos_token_id=1, eos_token_id=2, pad_token_id=None
    )
    class_ = getattr(transformers, family.class_name)
    model = class_._from_config(config, attn_implementation="eager", **family.arguments).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.save_pretrained(folder, **arguments)
    return model
