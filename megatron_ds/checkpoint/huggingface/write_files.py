"""Safetensors files, written one tensor at a time.

The library's own `save_file` needs all tensors of a file in memory. The format is simple enough to do without: eight
bytes with the length of a header, the header, a JSON object that may end in spaces, then the tensors' bytes. Source:
"Format" in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
INDEX_NAME = "model.safetensors.index.json"


def write_files(folder: Path, tensors: Iterable[tuple[str, Tensor]], names: Iterable[str], max_bytes: int) -> list[str]:
    """Writes ``model.safetensors``, or several ``model-0000N-of-0000M.safetensors`` with an index.

    Args:
        folder: where to; it has no such files.
        tensors: names and tensors, in the order of `names`; each is let go before the next is asked for.
        names: all names that there will be.
        max_bytes: most bytes of tensors in one file; a larger tensor has one to itself.

    Returns:
        The names of the files.
    """
    reserved = _room_for_header(names)
    files: list[_OpenFile] = []
    for name, tensor in tensors:
        if not files or files[-1].is_full(tensor, max_bytes):
            if files:
                files[-1].close()
            files.append(_OpenFile(folder / f"{len(files)}.partial", reserved))
        files[-1].add(name, tensor)
    files[-1].close()
    if len(files) == 1:
        files[0].path.rename(folder / "model.safetensors")
        return ["model.safetensors"]
    places: dict[str, str] = {}
    for number, file in enumerate(files, 1):
        final = f"model-{number:05}-of-{len(files):05}.safetensors"
        file.path.rename(folder / final)
        places |= dict.fromkeys(file.names, final)
    size = {"total_size": sum(file.num_bytes for file in files)}
    index = {"metadata": size, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return list(dict.fromkeys(places.values()))


def _room_for_header(names: Iterable[str]) -> int:
    """Bytes that the header of a file takes at most, whatever the shapes are: it is written before they are known."""
    entry = len('"":{"dtype":"BF16","shape":[,],"data_offsets":[,]},') + 4 * len(str(2**63))
    room = len('{"__metadata__":{"format":"pt"}}') + sum(len(json.dumps(name)) + entry for name in names)
    return -(-room // 8) * 8


class _OpenFile:
    """A file that grows by tensors; its header is filled in at the end."""

    def __init__(self, path: Path, reserved: int) -> None:
        self.path = path
        self.num_bytes = 0
        self.names: list[str] = []
        self._reserved = reserved
        self._header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._file: BinaryIO = path.open("wb")
        self._file.seek(8 + reserved)

    def is_full(self, tensor: Tensor, max_bytes: int) -> bool:
        """Whether `tensor` would make the file larger than it may be."""
        return self.num_bytes > 0 and self.num_bytes + tensor.nbytes > max_bytes

    def add(self, name: str, tensor: Tensor) -> None:
        """Writes a tensor's bytes."""
        start, self.num_bytes = self.num_bytes, self.num_bytes + tensor.nbytes
        self._header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, self.num_bytes],
        }
        self.names.append(name)
        # As bytes, because NumPy has no bfloat16.
        self._file.write(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)

    def close(self) -> None:
        """Writes the header."""
        header = json.dumps(self._header, separators=(",", ":")).encode()
        assert len(header) <= self._reserved, (len(header), self._reserved)
        self._file.seek(0)
        self._file.write(struct.pack("<Q", self._reserved) + header.ljust(self._reserved))
        self._file.close()
