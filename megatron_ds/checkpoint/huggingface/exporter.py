"""From our weights to a folder that ``from_pretrained`` of the model's class loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.architectures import choose_architecture
from megatron_ds.checkpoint.huggingface.config_file import CONFIG_NAME, to_config
from megatron_ds.checkpoint.huggingface.convert import cast_weights, their_shapes, their_tensors
from megatron_ds.checkpoint.huggingface.tokenizer_files import (
    GENERATION_CONFIG_NAME,
    WrittenTokenizer,
    write_tokenizer,
)
from megatron_ds.checkpoint.huggingface.write_files import write_files
from megatron_ds.checkpoint.new_folder import check_output, new_folder
from megatron_ds.checkpoint.weights import ModelWeights

# Beside a checkpoint that was imported: what our checkpoint has no place for.
KEPT_FOLDER = "huggingface"
UNUSED_ROWS_NAME = "unused_rows.safetensors"


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        architecture: the class of transformers.
        files: names of the files of weights.
        dtype: of the weights, as config.json has it.
        why_no_tokenizer: why no tokenizer was written; None when it was.
    """

    architecture: Architecture
    files: list[str]
    dtype: torch.dtype
    why_no_tokenizer: str | None


def export_huggingface(
    weights: ModelWeights,
    output: Path,
    *,
    data: Mapping[str, Any],
    kept: Path,
    architecture: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = 5 * 10**9,
) -> Exported:
    """Writes weights, config.json, the tokenizer's files and, for models that write texts, generation_config.json.

    Args:
        weights: the model.
        output: a folder that does not exist, or is empty.
        data: options of the ``data`` block of the run, which name the tokenizer.
        kept: the folder that an import left beside the checkpoint; it need not exist.
        architecture: model type of the class to write; None: the first that can express the model.
        dtype: to cast to; None: each tensor keeps its own.
        max_shard_bytes: most bytes of tensors in one file.

    Raises:
        ConfigError: no class can express the model.
        CheckpointError: `output` is taken, a weight can't be cast, or the system can't write. Nothing is left.
    """
    check_output(output)
    target = choose_architecture(weights.model, architecture)
    names = their_shapes(target, weights.model, weights.specs)
    unused_rows = _unused_rows(kept)
    dtypes: set[torch.dtype] = set()

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in their_tensors(target, cast_weights(weights, dtype), unused_rows):
            dtypes.add(tensor.dtype)
            yield name, tensor

    with new_folder(output) as folder:
        files = write_files(folder, tensors(), names, max_shard_bytes)
        # A loaded model has one dtype: the one that none of the tensors loses anything in.
        written = reduce(torch.promote_types, dtypes)
        tokenizer = write_tokenizer(data, folder, kept, target.model_type)
        _write_config(folder, to_config(target, weights.model), written, tokenizer)
        if target.family == "gpt":
            _write_generation_config(folder, tokenizer)
    return Exported(target, files, written, tokenizer.why_none)


def _unused_rows(kept: Path) -> dict[str, Tensor]:
    file = kept / UNUSED_ROWS_NAME
    return load_file(file) if file.is_file() else {}


def _write_config(folder: Path, config: dict[str, Any], dtype: torch.dtype, tokenizer: WrittenTokenizer) -> None:
    ids = dict(tokenizer.token_ids)
    # `torch_dtype` is the name before transformers 4.56.
    name = str(dtype).removeprefix("torch.")
    # Ids that are null are written too: a class has others by default.
    _write_json(folder / CONFIG_NAME, {**config, **ids, "dtype": name, "torch_dtype": name})


def _write_generation_config(folder: Path, tokenizer: WrittenTokenizer) -> None:
    given = {key: value for key, value in tokenizer.token_ids.items() if value is not None}
    _write_json(folder / GENERATION_CONFIG_NAME, dict(tokenizer.generation or given))


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
