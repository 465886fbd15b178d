"""Safetensors files, written one tensor at a time.

The library's own `save_file` needs all tensors of a file in memory. The format is simple enough to do without: eight
bytes with the length of a header, the header, a JSON object that may end in spaces, then the tensors' bytes. Source:
"Format" in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class SafetensorsFile:
    """A file that grows by tensors; its header is filled in at the end, when their shapes are known.

    Args:
        path: of the file; one that is there is overwritten.
        names: all names that there may be.
        metadata: texts for the header.
    """

    def __init__(self, path: Path, names: Iterable[str], metadata: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.num_bytes = 0
        self.names: list[str] = []
        self._header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
        self._reserved = _room_for_header(self._header, names)
        self._file = path.open("wb")
        self._file.seek(8 + self._reserved)

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._write_header()

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
        with self:
            pass

    def _write_header(self) -> None:
        header = _to_json(self._header)
        assert len(header) <= self._reserved, (len(header), self._reserved)
        self._file.seek(0)
        self._file.write(struct.pack("<Q", self._reserved) + header.ljust(self._reserved))


def _room_for_header(start: Mapping[str, object], names: Iterable[str]) -> int:
    """Bytes that the header of a file takes at most, whatever the shapes are: it is written before they are known."""
    entry = len('"":{"dtype":"BF16","shape":[,],"data_offsets":[,]},') + 4 * len(str(2**63))
    room = len(_to_json(start)) + sum(len(json.dumps(name)) + entry for name in names)
    # A multiple of 8, so that the numbers are aligned.
    return -(-room // 8) * 8


def _to_json(header: Mapping[str, object]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()
