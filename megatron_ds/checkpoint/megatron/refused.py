"""Saved arguments of Megatron's that ask for what our models don't have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_ds.checkpoint.megatron.pickled import EnumMember
from megatron_ds.errors import Problem, Source

Arguments = Mapping[str, Any]

# What must be off, because our models have nothing like it.
_MUST_BE_OFF = (
    "activation_func_clamp_value",
    "apply_layernorm_1p",
    "attention_output_gate",
    "enable_hyper_connections",
    "experimental_attention_variant",
    "glu_linear_offset",
    "heterogeneous_layers_config_path",
    "hybrid_override_pattern",
    "is_hybrid_model",
    "mtp_num_layers",
    "multi_latent_attention",
    "no_rope_freq",
    "qk_l2_norm",
    "quick_geglu",
    "retro_add_retriever",
    "use_mup",
    "window_attn_skip_freq",
)
# What must have one of these values, where it is stated.
_MUST_BE: Mapping[str, tuple[Any, ...]] = {
    "attention_head_type": ("multihead",),
    "expert_model_parallel_size": (1,),
    "mlp_type": ("standard",),
    "num_experts": (0, 1, [1]),
    "softmax_type": ("vanilla",),
}
# Their words and enum values for positions, and ours.
POSITIONS: Mapping[Any, str] = {
    "learned_absolute": "learned_absolute",
    "absolute": "learned_absolute",
    2: "learned_absolute",
    "rope": "rope",
    "rotary": "rope",
    1: "rope",
    "alibi": "alibi",
    3: "alibi",
    "none": "none",
}
# BLOOM's fork gives the norm after the embeddings the default of PyTorch, whatever --layernorm-epsilon is.
EMBED_NORM_EPSILON = 1e-5


def refusals(arguments: Arguments, origin: str) -> Iterator[Problem]:
    """One problem for each argument that asks for what our models don't have."""
    for name in _MUST_BE_OFF:
        if arguments.get(name):
            yield _refusal(name, arguments[name], "our models have nothing like it", origin)
    for name, fine in _MUST_BE.items():
        if arguments.get(name) is not None and arguments[name] not in fine:
            yield _refusal(name, arguments[name], f"only {' or '.join(map(str, fine))} can be imported", origin)
    kind = plain(arguments.get("position_embedding_type"))
    if kind is not None and kind not in POSITIONS:
        yield _refusal("position_embedding_type", kind, "our models have nothing like it", origin)
    if str(arguments.get("normalization", "LayerNorm")).lower() not in ("layernorm", "rmsnorm"):
        yield _refusal("normalization", arguments["normalization"], "our models have nothing like it", origin)
    window = arguments.get("window_size")
    if window and (len(window) != 2 or (window[0] >= 0 and window[1] != 0)):
        yield _refusal("window_size", window, "tokens attend to none after themselves here", origin)
    epsilon = arguments.get("layernorm_epsilon", EMBED_NORM_EPSILON)
    if has_embed_norm(arguments) and epsilon != EMBED_NORM_EPSILON:
        reason = (
            f"the norm after the embeddings has {EMBED_NORM_EPSILON:g} there, and one epsilon serves all norms here"
        )
        yield _refusal("layernorm_epsilon", epsilon, reason, origin)


def _refusal(name: str, value: Any, reason: str, origin: str) -> Problem:
    return Problem(f"{name}={value} can't be imported: {reason}", (Source(name, str(value), origin),))


def plain(value: Any) -> Any:
    """The value of an enum's member, or what was given."""
    return value.value if isinstance(value, EnumMember) else value


def has_embed_norm(arguments: Arguments) -> bool:
    """Whether a norm stands behind the word embeddings."""
    return bool(arguments.get("embed_layernorm") or arguments.get("use_bnb_optimizer"))
