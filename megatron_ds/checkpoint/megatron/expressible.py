"""Which of our models a layout of Megatron's can express."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from megatron_ds.checkpoint.megatron.bert import token_types_there
from megatron_ds.checkpoint.megatron.refused import EMBED_NORM_EPSILON
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import ConfigError, Problem

LayoutName = Literal["classic", "core", "bloom", "microsoft"]

# Options that each layout expresses, whatever their value, and those that say nothing about a finished model.
_ANYWHERE = {
    *("num_layers", "hidden_size", "num_attention_heads", "seq_length", "ffn_hidden_size", "kv_channels"),
    *("max_position_embeddings", "layernorm_epsilon", "fp32_residual_connection", "vocab_size"),
    *("make_vocab_size_divisible_by", "pad_vocab_size_to", "hidden_dropout", "attention_dropout"),
    *("init_method_std", "init_method", "use_scaled_init_method", "deepnorm_alpha", "deepnorm_beta"),
}
# Options that only count with another one.
_ROPE = {"rotary_base", "rotary_percent", "rotary_interleaved", "rotary_seq_len_interpolation_factor"}
_ROPE |= {"use_rope_scaling"}
_ROPE_SCALING = {"rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_positions"}


class _Everything:
    """A collection that holds every value."""

    def __contains__(self, value: object) -> bool:
        return True


@dataclass(frozen=True)
class Expressible:
    """What a layout can say beyond `_ANYWHERE` and our defaults.

    Attributes:
        values: option → the values that the layout has a word for.
        exact_gelu_without_bias: without biases, GELU is exact there.
        exact_gelu_in_heads: in BERT's head of masked tokens, GELU is exact there.
    """

    values: Mapping[str, Collection[Any] | _Everything]
    exact_gelu_without_bias: bool
    exact_gelu_in_heads: bool = False


_ANY = _Everything()
# All but BLOOM's fork have these.
_SINCE_2023: Mapping[str, Collection[Any] | _Everything] = {
    "num_query_groups": _ANY,
    "normalization": ("RMSNorm",),
    "disable_bias_linear": (True,),
    "untie_embeddings_and_output_weights": (True,),
}
_BERT: Mapping[str, Collection[Any] | _Everything] = {
    "model_type": ("bert",),
    "bert_binary_head": (False,),
    "num_tokentypes": _ANY,
}
LAYOUTS: Mapping[LayoutName, Expressible] = {
    # Megatron-LM's models before core. Source: megatron/model/{language_model,transformer}.py.
    "classic": Expressible(
        {
            **_SINCE_2023,
            "position_embedding_type": ("rope", "none"),
            "rotary_percent": _ANY,
            "rotary_seq_len_interpolation_factor": _ANY,
            "activation": ("gelu", "swiglu", "squared_relu"),
            "residual_connection": ("post_ln",),
            **_BERT,
            "output_head": ("classification", "multiple_choice", "none"),
            "num_classes": _ANY,
        },
        exact_gelu_without_bias=False,
    ),
    # Source: megatron/core/transformer, megatron/core/models/{gpt,bert}.
    "core": Expressible(
        {
            **_SINCE_2023,
            "position_embedding_type": ("rope", "none"),
            **dict.fromkeys((*_ROPE, "rope_scaling_factor", "window_size"), _ANY),
            "activation": ("gelu", "swiglu", "squared_relu"),
            "qk_layernorm": (True,),
            "add_qkv_bias": (True,),
            **_BERT,
        },
        exact_gelu_without_bias=True,
        exact_gelu_in_heads=True,
    ),
    # Source: bigscience Megatron-DeepSpeed, megatron/model/{language_model,transformer,glu_activations}.py.
    "bloom": Expressible(
        {
            "position_embedding_type": ("rope", "alibi"),
            "activation": ("gelu", "geglu", "swiglu", "reglu", "liglu"),
            "residual_connection": ("post_ln",),
            "embed_layernorm": (True,),
        },
        exact_gelu_without_bias=False,
    ),
    # Source: Microsoft Megatron-DeepSpeed, megatron/model/{language_model,transformer}.py.
    "microsoft": Expressible(
        {
            **_SINCE_2023,
            "position_embedding_type": ("rope", "none"),
            "rotary_percent": _ANY,
            "activation": ("gelu", "swiglu", "squared_relu"),
            "residual_connection": ("post_ln",),
        },
        exact_gelu_without_bias=False,
    ),
}


_NO_LAYOUT = "no layout has words for all options of this model; --format hf may"


def check_expressible(model: ModelConfig, layout: LayoutName, tp_size: int, pp_size: int) -> None:
    """Refuses a model that the layout has no words for, or that can't be cut that way.

    Raises:
        ConfigError: one report with every option.
    """
    problems = [*_unknown(model, layout), *_uncut(model, tp_size, pp_size)]
    if problems:
        raise ConfigError(problems)


def _unknown(model: ModelConfig, layout: LayoutName) -> Iterator[Problem]:
    has_rope = model.position_embedding_type == "rope"
    idle = (set() if has_rope else _ROPE) | (set() if has_rope and model.use_rope_scaling else _ROPE_SCALING)
    others = [name for name in LAYOUTS if not _options_without_word(model, name, idle)]
    advice = f"--layout {' or '.join(others)} has words for all options of this model" if others else _NO_LAYOUT
    for name in _options_without_word(model, layout, idle):
        value = model.token_types if name == "num_tokentypes" else getattr(model, name)
        yield Problem(f"{name}={value} has no counterpart in Megatron's {layout} layout", advice=advice)


def _options_without_word(model: ModelConfig, layout: LayoutName, idle: Collection[str]) -> list[str]:
    says = LAYOUTS[layout]
    options = [
        name
        for name, field in ModelConfig.model_fields.items()
        if name not in _ANYWHERE
        and name not in idle
        and getattr(model, name) != field.default
        and getattr(model, name) not in says.values.get(name, ())
    ]
    if model.num_kv_heads == model.num_attention_heads and "num_query_groups" in options:
        options.remove("num_query_groups")
    if layout == "bloom" and model.embed_layernorm and model.layernorm_epsilon != EMBED_NORM_EPSILON:
        options.append("layernorm_epsilon")
    if model.activation == "gelu_tanh" and (
        (model.disable_bias_linear and says.exact_gelu_without_bias)
        or (model.model_type == "bert" and says.exact_gelu_in_heads)
    ):
        options.append("activation")
    if model.model_type == "bert" and model.token_types != token_types_there(model):
        options.append("num_tokentypes")
    return options


def _uncut(model: ModelConfig, tp_size: int, pp_size: int) -> Iterator[Problem]:
    """What doesn't divide evenly, as Megatron asks for it."""
    for what, size in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_query_groups", model.num_kv_heads),
        ("ffn_hidden_size", model.ffn_size),
        ("padded vocabulary", model.padded_vocab_size(tp_size)),
    ):
        if size % tp_size:
            yield Problem(
                f"{what} {size} is not a multiple of the tensor-parallel size {tp_size} of the export",
                advice="choose another --target-tp",
            )
    if model.num_layers % pp_size:
        yield Problem(
            f"num_layers {model.num_layers} is not a multiple of the pipeline size {pp_size} of the export",
            advice="choose another --target-pp",
        )
