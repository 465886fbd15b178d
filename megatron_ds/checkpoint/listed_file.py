"""Files of a checkpoint that have to be the ones that its manifest lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from megatron_ds.checkpoint.hashed_file import sample_of
from megatron_ds.checkpoint.manifest import Manifest
from megatron_ds.checkpoint.safe_load import load_file
from megatron_ds.errors import CheckpointError, Problem


def load_listed(folder: Path, name: str, manifest: Manifest, allowed: Mapping[str, type] = MappingProxyType({})) -> Any:
    """Loads a file of a checkpoint, if some of its content is what was saved.

    Another rank's file, or another step's, has the same size; its numbers would be trained on without a word.

    Args:
        folder: of the checkpoint.
        name: of the file inside of it.
        manifest: its contents; where it does not list the file, nothing is compared.
        allowed: see `load_file`.

    Raises:
        CheckpointError: the file is missing, damaged, another one, or names a class that is not allowed.
    """
    wanted = manifest.files.get(name, {}).get("sample")
    path = folder / name
    if wanted is not None and path.is_file() and sample_of(path) != wanted:
        raise CheckpointError(
            Problem(
                f"{path} is not the file that was saved: it was changed, or it is that of another rank or step",
                advice="copy the whole folder again; megatron-ds checkpoint verify names every such file",
            )
        )
    return load_file(path, allowed)
