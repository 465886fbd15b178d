"""config.json from a `ModelConfig`, and back. What one side can't say is refused, all of it in one report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.config_keys import UnsupportedError
from megatron_ds.config.blocks import ModelConfig, default_ffn_size
from megatron_ds.errors import CheckpointError, Problem, Source
from megatron_ds.utils.logging import logger

CONFIG_NAME = "config.json"

# Options that change no logit: of training, of initial weights, of padding, of the dtype of sums. Also numbers that
# count beside another option only, which a class without it refuses already: of learned positions, of DeepNorm.
NO_MATTER = {
    *("seq_length", "hidden_dropout", "attention_dropout", "init_method", "init_method_std", "use_scaled_init_method"),
    *("deepnorm_beta", "fp32_residual_connection", "make_vocab_size_divisible_by", "pad_vocab_size_to"),
    *("max_position_embeddings", "deepnorm_alpha"),
}

# Entries that any config.json may have and that change no logit.
_NO_MATTER_TO_THEM = {
    *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache", "_name_or_path"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "task_specific_params", "pretraining_tp"),
    *("gradient_checkpointing", "id2label", "label2id", "num_labels", "_num_labels", "return_dict", "is_decoder"),
    *("output_attentions", "output_hidden_states", "tie_encoder_decoder", "chunk_size_feed_forward", "prefix"),
    *("problem_type", "attn_implementation", "_attn_implementation_autoset", "classifier_dropout"),
    *("original_max_position_embeddings", "unk_token_id", "model_parallel", "finetuning_task"),
}

# Entries that change what the weights mean wherever they say something.
_NEVER = ("quantization_config", "pruned_heads", "is_encoder_decoder", "cross_attention_hidden_size")


def export_problems(architecture: Architecture, model: ModelConfig) -> list[Problem]:
    """Each option of `model` that this class of transformers can't express."""
    _, unsupported = _written(architecture, model)
    return [_export_problem(architecture, error) for error in unsupported]


def to_config(architecture: Architecture, model: ModelConfig) -> dict[str, Any]:
    """config.json of a model that the class can express, without dtype and token ids."""
    config, unsupported = _written(architecture, model)
    assert not unsupported, "what the class can't express was refused before"
    return {"architectures": [architecture.name], "model_type": architecture.model_type, **config}


def _written(architecture: Architecture, model: ModelConfig) -> tuple[dict[str, Any], list[UnsupportedError]]:
    options = _filled_options(model)
    config, unsupported = dict(architecture.fixed), list(_out_of_place(architecture, options))
    for entry in architecture.entries:
        try:
            config.update(entry.write(options))
        except UnsupportedError as error:
            unsupported.append(error)
    # Two entries may refuse the same option.
    return config, list({error.name: error for error in unsupported}.values())


def _filled_options(model: ModelConfig) -> dict[str, Any]:
    """All options: derived ones filled, and at their defaults where they do nothing."""
    return {
        **{name: getattr(model, name) for name in ModelConfig.model_fields},
        "ffn_hidden_size": model.ffn_size,
        "kv_channels": model.head_size,
        "num_query_groups": model.num_kv_heads,
        "max_position_embeddings": model.num_positions if model.has_learned_positions else None,
        "num_tokentypes": model.token_types if model.model_type == "bert" else None,
        "add_qkv_bias": model.add_qkv_bias and model.disable_bias_linear,
    }


def _out_of_place(architecture: Architecture, options: Mapping[str, Any]) -> Iterator[UnsupportedError]:
    """Options that no entry says and that are not what all models of the class have."""
    heads, hidden = options["num_attention_heads"], options["hidden_size"]
    derived = {"kv_channels": hidden // heads, "num_query_groups": heads, "ffn_hidden_size": 4 * hidden}
    said = {name for entry in architecture.entries for name in entry.options}
    for name, value in options.items():
        if name in said or name in NO_MATTER:
            continue
        default = derived[name] if name in architecture.derived else ModelConfig.model_fields[name].default
        needed = architecture.always.get(name, default)
        if value != needed:
            yield UnsupportedError(name, value, str(needed))


def _export_problem(architecture: Architecture, error: UnsupportedError) -> Problem:
    flag = "--" + error.name.replace("_", "-")
    return Problem(
        f"{flag} {error.value} can't be written as {architecture.name}, which has {error.name} {error.allowed}",
        (Source(error.name, str(error.value), "the checkpoint's model"),),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder.

    Raises:
        CheckpointError: there is none, or it is no JSON object.
    """
    file = folder / CONFIG_NAME
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            Problem(f"{file} can't be read: {error}", advice="give the folder of a model that transformers saved")
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(Problem(f"{file} holds no object", advice="restore the file"))
    return content


def to_model(architecture: Architecture, config: Mapping[str, Any], where: str) -> ModelConfig:
    """Our model of a config.json.

    Args:
        architecture: the class that it names.
        config: its content.
        where: the file, for messages.

    Raises:
        CheckpointError: an entry says what ours can't, with all of them.
    """
    options: dict[str, Any] = dict(architecture.always)
    problems = [_import_problem(error, where) for error in _refused(architecture, config)]
    for entry in architecture.entries:
        try:
            for name, value in entry.read(config).items():
                if any(key in config for key in entry.keys):
                    problems += _contradiction(entry.keys, name, value, options, where)
                if value is not None:
                    options.setdefault(name, value)
        except UnsupportedError as error:
            problems.append(_import_problem(error, where))
        except (TypeError, ValueError) as error:
            problems.append(Problem(f"{where}: {', '.join(entry.keys)} can't be understood: {error}"))
    options.setdefault("seq_length", options.get("max_position_embeddings"))
    model = _built(options, where, problems)
    if problems or model is None:
        raise CheckpointError(problems)
    _tell_of_unknown(architecture, config, where)
    return model


def _refused(architecture: Architecture, config: Mapping[str, Any]) -> Iterator[UnsupportedError]:
    for name, needed in architecture.fixed.items():
        if (value := config.get(name, needed)) != needed:
            yield UnsupportedError(name, value, str(needed))
    for name in _NEVER:
        if config.get(name):
            yield UnsupportedError(name, config[name], "nothing")


def _contradiction(
    keys: tuple[str, ...], name: str, value: Any, options: Mapping[str, Any], where: str
) -> Iterator[Problem]:
    """One problem where an earlier entry said something else of the same option."""
    if name in options and name not in NO_MATTER and value is not None and options[name] != value:
        yield Problem(
            f"{where}: {', '.join(keys)} says that {name} is {value}, and another entry that it is {options[name]}; "
            "a model of ours has it one way",
            advice="this model can't be imported",
        )


def _built(options: Mapping[str, Any], where: str, problems: list[Problem]) -> ModelConfig | None:
    """The model, or None with what is wrong added to `problems`."""
    try:
        model = ModelConfig(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        # With other problems the missing values may be theirs.
        problems += [
            Problem(f"{where}: {'.'.join(map(str, detail['loc']))} is wrong or missing: {detail['msg']}")
            for detail in error.errors()
            if not (problems and detail["type"] == "missing")
        ]
        return None
    if model.vocab_size is None and not problems:
        problems.append(Problem(f"{where}: vocab_size is null", advice="write the number of rows of the embeddings"))
    heads, groups = model.num_attention_heads, model.num_kv_heads
    if model.hidden_size % heads and model.kv_channels is None:
        problems.append(Problem(f"{where}: the hidden size {model.hidden_size} is not a multiple of {heads} heads"))
    if heads % groups:
        problems.append(
            Problem(f"{where}: {groups} heads of keys and values can't serve {heads} attention heads evenly")
        )
    if model.position_embedding_type == "rope" and (model.rotary_size % 2 or not model.rotary_size):
        problems.append(Problem(f"{where}: rotary embeddings turn pairs of numbers, and rotate {model.rotary_size}"))
    return with_plain_width(model)


def with_plain_width(model: ModelConfig) -> ModelConfig:
    """The same model with options left out that say what follows from others, as people write them."""
    derived = {
        "kv_channels": model.hidden_size // model.num_attention_heads,
        "num_query_groups": model.num_attention_heads,
        "ffn_hidden_size": default_ffn_size(model.hidden_size, gated=model.is_gated),
    }
    return model.model_copy(update={name: None for name, value in derived.items() if getattr(model, name) == value})


def _import_problem(error: UnsupportedError, where: str) -> Problem:
    return Problem(
        f"{where}: {error.name} is {error.value}, and this importer knows {error.allowed}",
        (Source(error.name, str(error.value), where),),
        "this model can't be imported",
    )


def _tell_of_unknown(architecture: Architecture, config: Mapping[str, Any], where: str) -> None:
    said = {key for entry in architecture.entries for key in entry.keys}
    known = said | {*architecture.fixed, *architecture.no_matter, *_NEVER} | _NO_MATTER_TO_THEM
    if unknown := [name for name in config if name not in known]:
        logger.warning(
            "%s: %s: not known, and taken to change nothing; --check tells whether that is so",
            where,
            ", ".join(unknown),
        )
