"""All weights of a model in one file: safetensors, written one parameter at a time, or PyTorch's own format."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.errors import CheckpointError, Problem

# Names in the safetensors format (huggingface/safetensors, README: "Format").
_SAFETENSORS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


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
            _write_safetensors(partial, weights, dtype, metadata or {}, watch)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise CheckpointError(Problem(f"{path} can't be written: {reason}", advice="see that there is room")) from error


def _write_safetensors(
    path: Path,
    weights: ModelWeights,
    dtype: torch.dtype,
    metadata: Mapping[str, str],
    watch: Callable[[list[str]], Iterable[str]],
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name, spec in weights.specs.items():
        end = offset + math.prod(spec.full_shape) * dtype.itemsize
        header[name] = {
            "dtype": _SAFETENSORS[dtype],
            "shape": list(spec.full_shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in watch(list(weights.specs)):
            file.write(_bytes(weights.read(name).to(dtype)))


def _bytes(tensor: Tensor) -> memoryview:
    array: NDArray[np.uint8] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return array.data
