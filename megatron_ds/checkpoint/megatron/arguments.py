"""What Megatron's saved arguments say about a model, in our options.

Sources: NVIDIA Megatron-LM, megatron/training/arguments.py and `load_args_from_checkpoint` in
megatron/training/checkpointing.py; megatron/arguments.py of both Megatron-DeepSpeed forks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_ds.checkpoint.megatron.pickled import EnumMember
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, Problem, Source

Arguments = Mapping[str, Any]

# Our option, and theirs that say the same; the first one that is there counts.
SAME: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_layers",),
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("num_attention_heads",),
    "seq_length": ("seq_length",),
    "ffn_hidden_size": ("ffn_hidden_size",),
    "kv_channels": ("kv_channels",),
    "max_position_embeddings": ("max_position_embeddings",),
    "rotary_base": ("rotary_base", "rope_theta"),
    "rotary_percent": ("rotary_percent",),
    "rotary_interleaved": ("rotary_interleaved",),
    "rotary_seq_len_interpolation_factor": ("rotary_seq_len_interpolation_factor",),
    "use_rope_scaling": ("use_rope_scaling",),
    "rope_scaling_factor": ("rope_scaling_factor",),
    "layernorm_epsilon": ("norm_epsilon", "layernorm_epsilon"),
    "qk_layernorm": ("qk_layernorm",),
    "fp32_residual_connection": ("fp32_residual_connection",),
    "add_qkv_bias": ("add_qkv_bias",),
    "make_vocab_size_divisible_by": ("make_vocab_size_divisible_by",),
    "untie_embeddings_and_output_weights": ("untie_embeddings_and_output_weights",),
    "hidden_dropout": ("hidden_dropout",),
    "attention_dropout": ("attention_dropout",),
    "init_method_std": ("init_method_std",),
}
# Not theirs: the number of token ids without padding, which theirs don't keep.
VOCAB_SIZE = "megatron_ds_vocab_size"

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
_POSITIONS = {
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
# A run may change these, and the weights and what they mean stay the same.
_FREE = ("seq_length", "hidden_dropout", "attention_dropout", "init_method_std", "make_vocab_size_divisible_by")
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def model_of(arguments: Arguments, given: ModelConfig | None, origin: str) -> ModelConfig:
    """The architecture that the arguments describe.

    Args:
        arguments: theirs; may be empty or incomplete when `given` is there.
        given: our description, which counts where theirs say nothing.
        origin: where the arguments were read from, for messages.

    Raises:
        CheckpointError: the model can't be expressed, is not described in full, or is not the one given. One report
            with all reasons.
    """
    try:
        problems = list(_refusals(arguments, origin))
        options = _options(arguments)
    except (TypeError, IndexError) as error:
        message = f"{origin} has arguments of a kind that Megatron doesn't save: {error}"
        raise CheckpointError(Problem(message)) from error
    missing = [name for name in _NEEDED if given is None and options.get(name) is None]
    if missing:
        problems.append(
            Problem(
                f"{origin} doesn't say {', '.join(missing)}",
                advice="describe the model with --model FILE.json, as a preset in configs/models does",
            )
        )
    if problems:
        raise CheckpointError(problems)
    try:
        model = ModelConfig(**{**(given.model_dump() if given is not None else {}), **options})
    except ValueError as error:
        raise CheckpointError(Problem(f"{origin} describes no model that can be built: {error}")) from error
    problems = list(_indivisible(model, origin))
    if given is not None:
        problems += _differences(model, given, options, origin)
    if problems:
        raise CheckpointError(problems)
    return model if given is None else given.model_copy(update={"vocab_size": given.vocab_size or model.vocab_size})


def _options(arguments: Arguments) -> dict[str, Any]:
    """Our options, as far as the arguments state them."""
    options: dict[str, Any] = {}
    for ours, theirs in SAME.items():
        stated = [arguments[name] for name in theirs if arguments.get(name) is not None]
        if stated:
            options[ours] = stated[0]
    if not arguments:
        return options
    has_bias = arguments.get("add_bias_linear", not arguments.get("disable_bias_linear", False))
    vocab_size = arguments.get(VOCAB_SIZE) or arguments.get("padded_vocab_size")
    return {
        **options,
        **({} if vocab_size is None else {"vocab_size": vocab_size}),
        "num_query_groups": _query_groups(arguments),
        "position_embedding_type": _positions(arguments),
        "window_size": _window(arguments),
        "normalization": "RMSNorm" if str(arguments.get("normalization")).lower() == "rmsnorm" else "LayerNorm",
        "activation": _activation(arguments, has_bias=has_bias),
        "disable_bias_linear": not has_bias,
        "embed_layernorm": _has_embed_norm(arguments),
        "residual_connection": "post_ln" if arguments.get("apply_residual_connection_post_layernorm") else "pre_ln",
    }


def _query_groups(arguments: Arguments) -> int | None:
    groups = arguments.get("num_query_groups") if arguments.get("group_query_attention") else None
    groups = groups or arguments.get("num_key_value_heads")
    return None if groups == arguments.get("num_attention_heads") else groups


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, EnumMember) else value


def _positions(arguments: Arguments) -> str:
    if arguments.get("use_rotary_position_embeddings"):
        return "rope"
    kind = _POSITIONS.get(_plain(arguments.get("position_embedding_type", "learned_absolute")), "learned_absolute")
    return "none" if kind == "learned_absolute" and arguments.get("add_position_embedding") is False else kind


def _window(arguments: Arguments) -> int | None:
    window = arguments.get("window_size")
    # Theirs counts the tokens before a token, ours that token too.
    return None if not window or window[0] < 0 else window[0] + 1


def _activation(arguments: Arguments, *, has_bias: bool) -> str:
    if arguments.get("glu_activation"):
        return str(arguments["glu_activation"])
    for name, activation in (("openai_gelu", "gelu_tanh"), ("onnx_safe", "gelu")):
        if arguments.get(name):
            return activation
    for name in ("swiglu", "squared_relu"):
        if arguments.get(name):
            return name
    # The fused kernel is the approximation, the plain function is exact.
    return "gelu_tanh" if arguments.get("bias_gelu_fusion", True) and has_bias else "gelu"


def _has_embed_norm(arguments: Arguments) -> bool:
    return bool(arguments.get("embed_layernorm") or arguments.get("use_bnb_optimizer"))


def _refusals(arguments: Arguments, origin: str) -> Iterator[Problem]:
    """One problem for each argument that asks for what our models don't have."""
    for name in _MUST_BE_OFF:
        if arguments.get(name):
            yield _refusal(name, arguments[name], "our models have nothing like it", origin)
    for name, fine in _MUST_BE.items():
        if arguments.get(name) is not None and arguments[name] not in fine:
            yield _refusal(name, arguments[name], f"only {' or '.join(map(str, fine))} can be imported", origin)
    kind = _plain(arguments.get("position_embedding_type"))
    if kind is not None and kind not in _POSITIONS:
        yield _refusal("position_embedding_type", kind, "our models have nothing like it", origin)
    if str(arguments.get("normalization", "LayerNorm")).lower() not in ("layernorm", "rmsnorm"):
        yield _refusal("normalization", arguments["normalization"], "our models have nothing like it", origin)
    window = arguments.get("window_size")
    if window and (len(window) != 2 or (window[0] >= 0 and window[1] != 0)):
        yield _refusal("window_size", window, "tokens attend to none after themselves here", origin)
    epsilon = arguments.get("layernorm_epsilon", EMBED_NORM_EPSILON)
    if _has_embed_norm(arguments) and epsilon != EMBED_NORM_EPSILON:
        reason = (
            f"the norm after the embeddings has {EMBED_NORM_EPSILON:g} there, and one epsilon serves all norms here"
        )
        yield _refusal("layernorm_epsilon", epsilon, reason, origin)


def _refusal(name: str, value: Any, reason: str, origin: str) -> Problem:
    return Problem(f"{name}={value} can't be imported: {reason}", (Source(name, str(value), origin),))


def _indivisible(model: ModelConfig, origin: str) -> Iterator[Problem]:
    heads, hidden_size = model.num_attention_heads, model.hidden_size
    if model.kv_channels is None and hidden_size % heads:
        yield Problem(f"{origin}: hidden size {hidden_size} is not a multiple of {heads} attention heads")
    if heads % model.num_kv_heads:
        yield Problem(f"{origin}: {heads} attention heads are not a multiple of {model.num_kv_heads} query groups")
    if model.vocab_size is None:
        yield Problem(
            f"{origin} doesn't say padded_vocab_size",
            advice="give vocab_size in the file of --model: the number of rows of the word embeddings, or fewer",
        )


def _differences(model: ModelConfig, given: ModelConfig, options: Mapping[str, Any], origin: str) -> Iterator[Problem]:
    """What the arguments say otherwise than the model that was given."""
    theirs, ours = _resolved(model), _resolved(given)
    for name in options:
        if name in (*_FREE, "vocab_size") or theirs[name] == ours[name]:
            continue
        yield Problem(
            f"the model given is not the checkpoint's: {name} is {ours[name]} and there {theirs[name]}",
            (Source(name, str(ours[name]), "--model"), Source(name, str(theirs[name]), origin)),
            "correct the file, or leave --model out",
        )


def _resolved(model: ModelConfig) -> dict[str, Any]:
    """Options with what is derived where nothing is given."""
    return {
        **model.model_dump(),
        "ffn_hidden_size": model.ffn_size,
        "kv_channels": model.head_size,
        "num_query_groups": model.num_kv_heads,
        "max_position_embeddings": model.num_positions if model.has_learned_positions else None,
    }
