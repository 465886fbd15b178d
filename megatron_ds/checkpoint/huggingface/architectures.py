"""The classes of transformers that are known, and which one a model is written as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.bloom import BLOOM
from megatron_ds.checkpoint.huggingface.config_file import export_problems
from megatron_ds.checkpoint.huggingface.gpt2 import GPT2
from megatron_ds.checkpoint.huggingface.gpt_neox import GPT_NEOX
from megatron_ds.checkpoint.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from megatron_ds.checkpoint.huggingface.opt import OPT
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError, Problem, Source

# The next one: a file that says what these say, and its name here.
ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.model_type: architecture for architecture in (GPT2, BLOOM, GPT_NEOX, OPT, LLAMA, MISTRAL, QWEN2, QWEN3)
}


def choose_architecture(model: ModelConfig, name: str | None = None) -> Architecture:
    """The class that `model` is written as: the first that can express it, those of its activation before others.

    Args:
        model: the model.
        name: model type of the class that it has to be.

    Raises:
        ConfigError: no class can express it, or not the one that is named. One problem for each option; of the class
            that is nearest where none is named.
    """
    candidates = list(ARCHITECTURES.values()) if name is None else [ARCHITECTURES[name]]
    candidates.sort(key=lambda candidate: candidate.usual_activation != model.activation)
    reports = [(export_problems(candidate, model), candidate) for candidate in candidates]
    problems, nearest = min(reports, key=lambda report: len(report[0]))
    if problems:
        raise ConfigError(_with_advice(problems, nearest, named=name is not None))
    return nearest


def _with_advice(problems: list[Problem], nearest: Architecture, *, named: bool) -> list[Problem]:
    advice = (
        "leave --architecture out to try the others"
        if named
        else f"no class of {', '.join(ARCHITECTURES)} can express it; {nearest.model_type} is the nearest"
    )
    return [*problems[:-1], replace(problems[-1], advice=advice)]


def named_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The class that a config.json names.

    Args:
        config: its content.
        where: the file, for the message.

    Raises:
        CheckpointError: it is none that is known.
    """
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in ARCHITECTURES:
        return ARCHITECTURES[kind]
    raise CheckpointError(
        Problem(
            f"model_type {kind!r} can't be imported",
            (Source("model_type", str(kind), where),),
            f"these can: {', '.join(ARCHITECTURES)}",
        )
    )
