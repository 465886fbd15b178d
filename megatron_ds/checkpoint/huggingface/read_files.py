"""Their files of weights, read one tensor at a time: safetensors or .bin, one file or several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatron_ds.checkpoint.safe_load import load_file
from megatron_ds.errors import CheckpointError, Problem

# Names in the safetensors format.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_SAFETENSORS, _PYTORCH = "model.safetensors", "pytorch_model.bin"


class TensorFiles(Protocol):
    """Named tensors in files."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in the files' order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""

    def dtype(self, name: str) -> torch.dtype | None:
        """The dtype of a tensor, without reading it; None where it is none that weights have."""

    def read(self, name: str) -> Tensor:
        """A tensor, in its own dtype. It may be a view of a mapped file."""


def open_files(folder: Path) -> TensorFiles:
    """The weights in `folder`; of both kinds of files, safetensors.

    Raises:
        CheckpointError: there are none, one is missing or damaged, or a .bin holds anything else than tensors.
    """
    for name, kind in ((_SAFETENSORS, _SafetensorsFiles), (_PYTORCH, _PyTorchFiles)):
        index = folder / f"{name}.index.json"
        if index.is_file():
            return kind(folder, _indexed_files(index))
        if (folder / name).is_file():
            return kind(folder, [name])
    raise CheckpointError(
        Problem(
            f"{folder} holds no weights: neither {_SAFETENSORS} nor {_PYTORCH}, and no index of several files",
            advice="give the folder of a model that transformers saved",
        )
    )


def _indexed_files(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(Problem(f"{index} is no index of weights: {error}", advice="restore the file")) from error
    for name in names:
        # An index has no business outside of its folder.
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(Problem(f"{index} names {name!r}, which is no file of its folder"))
    if missing := [name for name in names if not (index.parent / name).is_file()]:
        raise CheckpointError(
            Problem(f"{index.parent} lacks {', '.join(missing)}, which {index.name} names", advice="copy all files")
        )
    return names


class _SafetensorsFiles:
    def __init__(self, folder: Path, names: list[str]) -> None:
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype | None] = {}
        for file in (folder / name for name in names):
            try:
                with safe_open(file, "pt") as opened:
                    for name in opened.keys():  # noqa: SIM118
                        tensor = opened.get_slice(name)
                        self._files[name] = file
                        self._shapes[name] = tuple(tensor.get_shape())
                        self._dtypes[name] = _DTYPES.get(tensor.get_dtype())
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    Problem(f"{file} can't be read: {error}", advice="it is cut short or damaged")
                ) from error
        self.names = tuple(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype | None:
        return self._dtypes[name]

    def read(self, name: str) -> Tensor:
        # Opened for each tensor: a file that stays mapped counts as memory, as far as it was read.
        with safe_open(self._files[name], "pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor


class _PyTorchFiles:
    def __init__(self, folder: Path, names: list[str]) -> None:
        self._tensors: dict[str, Tensor] = {}
        for name in names:
            content = load_file(folder / name)
            # Some programs wrap the weights.
            content = content.get("state_dict", content) if isinstance(content, Mapping) else content
            if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
                raise CheckpointError(Problem(f"{folder / name} is no table of named tensors"))
            self._tensors |= content
        self.names = tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype | None:
        dtype = self._tensors[name].dtype
        return dtype if dtype in _DTYPES.values() else None

    def read(self, name: str) -> Tensor:
        return self._tensors[name].detach()
