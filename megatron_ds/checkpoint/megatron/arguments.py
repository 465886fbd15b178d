"""What Megatron's saved arguments say about a model, in our options.

Sources: NVIDIA Megatron-LM, megatron/training/arguments.py and `load_args_from_checkpoint` in
megatron/training/checkpointing.py; megatron/arguments.py of both Megatron-DeepSpeed forks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from megatron_ds.checkpoint.megatron.refused import POSITIONS, Arguments, has_embed_norm, plain, refusals
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, Problem, Source

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

# A run may change these, and the weights and what they mean stay the same.
_FREE = ("seq_length", "hidden_dropout", "attention_dropout", "init_method_std", "make_vocab_size_divisible_by")
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def model_of(
    arguments: Arguments, given: ModelConfig | None, origin: str, seen: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The architecture that the arguments describe.

    Args:
        arguments: theirs; may be empty or incomplete when `given` is there.
        given: our description, which counts where theirs say nothing.
        origin: where the arguments were read from, for messages.
        seen: options that the weights themselves say.

    Raises:
        CheckpointError: the model can't be expressed, is not described in full, or is not the one given. One report
            with all reasons.
    """
    try:
        problems = list(refusals(arguments, origin))
        options = {**_options(arguments, with_defaults=given is None), **(seen or {})}
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


def _options(arguments: Arguments, *, with_defaults: bool) -> dict[str, Any]:
    """Our options, as far as the arguments state them.

    Args:
        arguments: theirs.
        with_defaults: takes what is not stated for Megatron's default, and does not leave it out.
    """
    options = {}
    for ours, theirs in SAME.items():
        stated = [arguments[name] for name in theirs if arguments.get(name) is not None]
        if stated:
            options[ours] = stated[0]
    for ours, (theirs, derive) in _DERIVED.items():
        if with_defaults or any(name in arguments for name in theirs):
            options[ours] = derive(arguments)
    return options


def _vocab_size(arguments: Arguments) -> int | None:
    return arguments.get(VOCAB_SIZE) or arguments.get("padded_vocab_size")


def _query_groups(arguments: Arguments) -> int | None:
    groups = arguments.get("num_query_groups") if arguments.get("group_query_attention") else None
    groups = groups or arguments.get("num_key_value_heads")
    return None if groups == arguments.get("num_attention_heads") else groups


def _positions(arguments: Arguments) -> str:
    if arguments.get("use_rotary_position_embeddings"):
        return "rope"
    kind = POSITIONS.get(plain(arguments.get("position_embedding_type")), "learned_absolute")
    return "none" if kind == "learned_absolute" and arguments.get("add_position_embedding") is False else kind


def _window(arguments: Arguments) -> int | None:
    window = arguments.get("window_size")
    # Theirs counts the tokens before a token, ours that token too.
    return None if not window or window[0] < 0 else window[0] + 1


def _normalization(arguments: Arguments) -> str:
    return "RMSNorm" if str(arguments.get("normalization")).lower() == "rmsnorm" else "LayerNorm"


def _residual(arguments: Arguments) -> str:
    return "post_ln" if arguments.get("apply_residual_connection_post_layernorm") else "pre_ln"


def _has_no_bias(arguments: Arguments) -> bool:
    return not arguments.get("add_bias_linear", not arguments.get("disable_bias_linear", False))


def _activation(arguments: Arguments) -> str:
    if arguments.get("glu_activation"):
        return str(arguments["glu_activation"])
    for name, activation in (("openai_gelu", "gelu_tanh"), ("onnx_safe", "gelu")):
        if arguments.get(name):
            return activation
    for name in ("swiglu", "squared_relu"):
        if arguments.get(name):
            return name
    # The fused kernel is the approximation, the plain function is exact.
    return "gelu_tanh" if arguments.get("bias_gelu_fusion", True) and not _has_no_bias(arguments) else "gelu"


# Our option; their arguments that decide on it; how.
_DERIVED: Mapping[str, tuple[tuple[str, ...], Callable[[Arguments], Any]]] = {
    "vocab_size": ((VOCAB_SIZE, "padded_vocab_size"), _vocab_size),
    "num_query_groups": (("group_query_attention", "num_key_value_heads"), _query_groups),
    "position_embedding_type": (
        ("position_embedding_type", "use_rotary_position_embeddings", "add_position_embedding"),
        _positions,
    ),
    "window_size": (("window_size",), _window),
    "normalization": (("normalization",), _normalization),
    "activation": (
        ("glu_activation", "openai_gelu", "onnx_safe", "swiglu", "squared_relu", "bias_gelu_fusion"),
        _activation,
    ),
    "disable_bias_linear": (("add_bias_linear", "disable_bias_linear"), _has_no_bias),
    "embed_layernorm": (("embed_layernorm", "use_bnb_optimizer"), has_embed_norm),
    "residual_connection": (("apply_residual_connection_post_layernorm",), _residual),
}


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
        "num_tokentypes": model.token_types,
    }
