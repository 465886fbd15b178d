"""From a folder that transformers saved to our weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from megatron_ds.checkpoint.foreign import refuse_own
from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.architectures import named_architecture
from megatron_ds.checkpoint.huggingface.config_file import CONFIG_NAME, read_config, to_model
from megatron_ds.checkpoint.huggingface.convert import cast_weights, our_weights, read_unused_rows, widest_dtype
from megatron_ds.checkpoint.huggingface.exporter import UNUSED_ROWS_NAME
from megatron_ds.checkpoint.huggingface.read_files import open_files
from megatron_ds.checkpoint.huggingface.tokenizer_files import (
    GENERATION_CONFIG_NAME,
    TOKENIZER_FILES,
    copy_tokenizer_files,
)
from megatron_ds.checkpoint.new_folder import new_folder
from megatron_ds.checkpoint.weights import ModelWeights


@dataclass(frozen=True)
class Imported:
    """A model of theirs as ours.

    Attributes:
        source: their folder.
        architecture: their class.
        weights: the model, read when it is asked for.
        dtype: in which none of the weights loses anything.
        unused_rows: by name of theirs, rows that our model has no place for.
    """

    source: Path
    architecture: Architecture
    weights: ModelWeights
    dtype: torch.dtype
    unused_rows: Mapping[str, Tensor]

    def keep(self, folder: Path) -> None:
        """Writes what our checkpoint has no place for: the tokenizer's files, settings of generation, unused rows.

        Args:
            folder: one that does not exist.

        Raises:
            CheckpointError: the system can't write. Nothing is left.
        """
        with new_folder(folder) as partial:
            copy_tokenizer_files(self.source, partial)
            for name in (CONFIG_NAME, GENERATION_CONFIG_NAME):
                if (self.source / name).is_file():
                    shutil.copyfile(self.source / name, partial / name)
            if self.unused_rows:
                save_file(dict(self.unused_rows), partial / UNUSED_ROWS_NAME)

    def in_dtype(self, dtype: torch.dtype | None) -> Imported:
        """The same model in another dtype; None: as it is."""
        return replace(self, weights=cast_weights(self.weights, dtype), dtype=dtype or self.dtype)

    def data_options(self, kept: Path) -> dict[str, Any]:
        """Options of a run's ``data`` block that name the tokenizer which `keep` leaves; none where there is none."""
        if not any((self.source / name).is_file() for name in TOKENIZER_FILES):
            return {}
        return {"tokenizer_type": "HFTokenizer", "tokenizer_name_or_path": str(kept)}


def import_huggingface(folder: Path) -> Imported:
    """Opens a model of theirs and checks that all of it has a place in ours. Reads weights when they are asked for.

    Raises:
        CheckpointError: files are missing or damaged, the architecture is not known, an entry of config.json says
            what ours can't, or tensors don't fit. As many problems as can be found at once.
    """
    if not (folder / CONFIG_NAME).is_file():
        refuse_own(folder)
    config = read_config(folder)
    where = str(folder / CONFIG_NAME)
    files = open_files(folder)
    architecture = named_architecture(config, files.names, where)
    model = to_model(architecture, config, where)
    weights = our_weights(architecture, model, files, str(folder))
    dtype = widest_dtype(architecture, weights, files)
    return Imported(folder, architecture, weights, dtype, read_unused_rows(architecture, weights, files))
