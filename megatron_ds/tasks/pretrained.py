"""The model that finetuning begins with, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint.foreign import holds_own
from megatron_ds.checkpoint.huggingface import import_huggingface
from megatron_ds.checkpoint.huggingface.config_file import CONFIG_NAME
from megatron_ds.checkpoint.megatron import import_megatron
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.engine.base import TrainEngine
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.utils.text import counted

_OPTION = "--pretrained-checkpoint"
# What a task has learned to score says nothing of another one, even where their classes are as many.
_HEAD_OF_A_TASK = "classification_head."


@dataclass(frozen=True)
class PretrainedModel:
    """A model whose body is to be finetuned.

    Attributes:
        label: where it is from, for messages.
        weights: all that it has, each read when it is asked for.
        data: options of its ``data`` block that name its tokenizer; empty where it names none.
    """

    label: str
    weights: ModelWeights
    data: Mapping[str, Any]

    @property
    def model(self) -> ModelConfig:
        """Its architecture."""
        return self.weights.model


@dataclass(frozen=True)
class BodyMatch:
    """Which weights a model takes over from a pretrained one.

    Attributes:
        taken: canonical names of the weights that both have.
        new: those that the pretrained model lacks.
        unused: those that only the pretrained model has.
    """

    taken: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]

    @classmethod
    def between(cls, model: ModelConfig, pretrained: PretrainedModel) -> BodyMatch:
        """Compares by name; a checked run has the pretrained model's shapes wherever the names are the same.

        Args:
            model: the one to be finetuned, with its vocabulary size known.
            pretrained: the one that it begins with.
        """
        ours = model_specs(model)
        theirs = {name for name in pretrained.weights.specs if not name.startswith(_HEAD_OF_A_TASK)}
        return cls(
            taken=tuple(name for name in ours if name in theirs),
            new=tuple(name for name in ours if name not in theirs),
            unused=tuple(name for name in pretrained.weights.specs if name not in theirs or name not in ours),
        )

    def load(self, engine: TrainEngine, pretrained: PretrainedModel) -> list[str]:
        """Gives an engine the weights; every rank calls it.

        Returns:
            What was taken, what is new and what is left over, as lines for the log.
        """
        engine.load_weights(pretrained.weights, self.taken)
        lines = [f"loaded {counted(len(self.taken), 'parameter')} of the body from {pretrained.label}"]
        lines += [f"new, with random weights: {_layers(self.new)}"] if self.new else []
        lines += [f"not needed here: {_layers(self.unused)}"] if self.unused else []
        return lines


def open_pretrained(folder: Path) -> PretrainedModel:
    """Opens a checkpoint of ours, or a folder of Hugging Face's or Megatron-LM's.

    Raises:
        CheckpointError: there is none, it is damaged, or our models can't express it.
    """
    if not folder.is_dir():
        raise CheckpointError(Problem(f"there is no folder {folder}", advice=f"check the path given to {_OPTION}"))
    if holds_own(folder):
        reader = open_checkpoint(folder, option=_OPTION)
        # In fp32, where an optimizer has the weights: they are rounded once, to this run's precision.
        weights = reader.weights("fp32" if reader.has_optimizer else "weights")
        return PretrainedModel(str(reader.folder), weights, reader.manifest.options.get("data", {}))
    if (folder / CONFIG_NAME).is_file():
        imported = import_huggingface(folder)
        return PretrainedModel(
            f"{folder} ({imported.architecture.name})", imported.weights, imported.data_options(folder)
        )
    return PretrainedModel(f"{folder} (Megatron-LM)", import_megatron(folder), {})


def _layers(names: tuple[str, ...]) -> str:
    """``pooler.dense, classification_head``: the layers that parameters belong to."""
    return ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in names))
