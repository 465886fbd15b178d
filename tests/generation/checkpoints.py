"""A small checkpoint as files, without a run that trains it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.checkpoint.write import write_checkpoint
from megatron_ds.config.blocks import ModelConfig
from tests.generation.models import random_weights

BYTES = {"tokenizer_type": "ByteTokenizer"}


def random_checkpoint(folder: Path, config: ModelConfig, data: Mapping[str, Any] = BYTES) -> Path:
    """A checkpoint in fp32 with random weights and the options of the run's data; returns the run's folder."""
    weights = ModelWeights(config, model_specs(config), random_weights(config).__getitem__)
    write_checkpoint(folder, weights, options={"data": dict(data)}, precision="fp32")
    return folder
