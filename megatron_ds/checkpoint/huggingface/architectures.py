"""The classes of transformers that are known, and which one a model is written as."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.bert import BERT
from megatron_ds.checkpoint.huggingface.bloom import BLOOM
from megatron_ds.checkpoint.huggingface.config_file import export_problems
from megatron_ds.checkpoint.huggingface.gpt2 import GPT2
from megatron_ds.checkpoint.huggingface.gpt_neox import GPT_NEOX
from megatron_ds.checkpoint.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from megatron_ds.checkpoint.huggingface.opt import OPT
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError, Problem, Source

# Model type → its classes, one for each head. The next one: a file that says what these say, and its name here.
ARCHITECTURES: Mapping[str, tuple[Architecture, ...]] = {
    **{one.model_type: (one,) for one in (GPT2, BLOOM, GPT_NEOX, OPT, LLAMA, MISTRAL, QWEN2, QWEN3)},
    "bert": BERT,
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
    known = [one for classes in ARCHITECTURES.values() for one in classes]
    candidates = [one for one in known if one.family == model.model_type] if name is None else [*ARCHITECTURES[name]]
    candidates.sort(key=lambda candidate: candidate.usual_activation != model.activation)
    reports = [(export_problems(candidate, model), candidate) for candidate in candidates]
    problems, nearest = min(reports, key=lambda report: len(report[0]))
    if problems:
        raise ConfigError(_with_advice(problems, nearest, candidates, named=name is not None))
    return nearest


def _with_advice(
    problems: list[Problem], nearest: Architecture, candidates: Collection[Architecture], *, named: bool
) -> list[Problem]:
    kinds = list(dict.fromkeys(candidate.model_type for candidate in candidates))
    if named:
        advice = "leave --architecture out to try the others"
    elif len(kinds) == 1:
        advice = f"no class of {kinds[0]} can express it; --format megatron may"
    else:
        advice = f"no class of {', '.join(kinds)} can express it; {nearest.model_type} is the nearest"
    return [*problems[:-1], replace(problems[-1], advice=advice)]


def named_architecture(config: Mapping[str, Any], tensors: Collection[str], where: str) -> Architecture:
    """The class that a config.json names; of classes with the same body, the one whose head the files have.

    Args:
        config: its content.
        tensors: names of the tensors in the files.
        where: the file, for the message.

    Raises:
        CheckpointError: it is none that is known.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise _unknown("model_type", kind, where, ARCHITECTURES)
    classes = ARCHITECTURES[kind]
    if len(classes) == 1:
        return classes[0]
    named = config.get("architectures") or []
    if others := [name for name in named if name not in [one.name for one in classes]]:
        raise _unknown("architectures", others[0], where, dict.fromkeys(one.name for one in classes))
    fitting = [one for one in classes if one.told_by is None or _has(tensors, one.told_by, one.prefix)]
    same_head = [one for one in fitting if one.told_by == fitting[0].told_by]
    return next((one for one in same_head if one.name in named), same_head[0])


def _has(tensors: Collection[str], name: str, prefix: str) -> bool:
    return name in tensors or name.removeprefix(prefix) in tensors


def _unknown(entry: str, value: Any, where: str, known: Collection[str]) -> CheckpointError:
    return CheckpointError(
        Problem(
            f"{entry} {value!r} can't be imported",
            (Source(entry, str(value), where),),
            f"these can: {', '.join(known)}",
        )
    )
