"""All weights of a model in one file: safetensors, written one parameter at a time, or PyTorch's own format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from megatron_ds.checkpoint.safetensors_file import SafetensorsFile
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.errors import CheckpointError, Problem


def write_one_file(
    path: Path,
    weights: ModelWeights,
    *,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
    watch: Callable[[list[str]], Iterable[str]] = iter,
) -> None:
    """Writes whole weights under their canonical names.

    Args:
        path: of the file; ``.safetensors``, or ``.pt``, for which all weights are held in memory.
        weights: the model.
        dtype: of the file; that of the first weight by default.
        metadata: texts for the header of a safetensors file.
        watch: goes over the names, to show progress.

    Raises:
        CheckpointError: the file is there already, can't be written, or has another ending.
    """
    if path.suffix not in (".safetensors", ".pt"):
        raise CheckpointError(Problem(f"{path} ends in neither .safetensors nor .pt", advice="give the file's name"))
    if path.exists():
        raise CheckpointError(Problem(f"{path} is there already", advice="give another name, or remove it"))
    names = list(weights.specs)
    dtype = dtype or weights.read(names[0]).dtype
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pt":
            torch.save({name: weights.read(name).to(dtype) for name in watch(names)}, partial)
        else:
            with SafetensorsFile(partial, names, metadata) as file:
                for name in watch(names):
                    file.add(name, weights.read(name).to(dtype))
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise CheckpointError(Problem(f"{path} can't be written: {reason}", advice="see that there is room")) from error
