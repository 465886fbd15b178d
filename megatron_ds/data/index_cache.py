"""Keeps built indices on disk, under a name made from everything that determines them."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.indexed_dataset import bin_path, idx_path
from megatron_ds.data.token_info import read_token_info
from megatron_ds.errors import DataError, Problem

# Part of every name: raise it when the same key would give another index.
FORMAT = 5

# An index: its arrays by name.
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class IndexKey:
    """Everything that an index depends on.

    Attributes:
        prefix: the data set; its files' sizes and modification times and its tokenizer's fingerprint count as well.
        split: "train", "valid" or "test": they are shuffled independently.
        documents: first document, and one past the last.
        seed: seed of the order.
        arrays: names of the index's arrays.
        options: the kind of samples, and what else they depend on.
    """

    prefix: str
    split: str
    documents: tuple[int, int]
    seed: int
    arrays: tuple[str, ...]
    options: tuple[str | int | float | bool, ...]

    def file_stem(self) -> str:
        """A short name that changes whenever the index would."""
        stats = [path.stat() for path in (bin_path(self.prefix), idx_path(self.prefix))]
        identity: list[tuple[object, ...]] = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
        info = read_token_info(self.prefix)
        identity.append((info.fingerprint if info else None,))
        parts = (FORMAT, str(Path(self.prefix).resolve()), identity, self.split, self.documents)
        everything = json.dumps([*parts, self.seed, self.arrays, self.options])
        return f"{Path(self.prefix).name}_{self.split}_{hashlib.sha256(everything.encode()).hexdigest()[:24]}"


class IndexCache:
    """A folder of indices: a ``.npy`` file for each array, memory-mapped when read; a ``.json`` with their checksums.

    Files appear under their names whole (written beside, then renamed), so that a killed job leaves no half index
    and two jobs that build the same index at once do not disturb each other.

    Args:
        folder: where the files are kept; made when something is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: IndexKey, *, verify: bool = False) -> Arrays | None:
        """The index of `key`, or None when it is not there or is damaged.

        Args:
            key: what it depends on.
            verify: read all of it and compare its checksums; otherwise dtypes and shapes are compared.
        """
        stem = key.file_stem()
        try:
            expected = json.loads((self.folder / f"{stem}.json").read_text(encoding="utf-8"))
            arrays = {part: _map_array(self._path(stem, part)) for part in key.arrays}
            if {part: _describe(array, verify) for part, array in arrays.items()} != (
                expected if verify else {part: {**expected[part], "crc32": None} for part in key.arrays}
            ):
                return None
        except (OSError, ValueError, EOFError, KeyError, TypeError):
            return None
        return arrays

    def store(self, key: IndexKey, arrays: Arrays) -> None:
        """Writes an index.

        Raises:
            DataError: the folder can't be written.
        """
        stem = key.file_stem()
        assert tuple(arrays) == key.arrays, "the key names the arrays"
        description = json.dumps({part: _describe(array, True) for part, array in arrays.items()}).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for part, array in arrays.items():
                _write(self._path(stem, part), partial(np.save, arr=array, allow_pickle=False))
            # Last: arrays without it are none.
            _write(self.folder / f"{stem}.json", lambda file: file.write(description))
        except OSError as error:
            raise DataError(
                Problem(
                    f"the sample index can't be written to {self.folder}: {error}",
                    advice="give a folder that can be written with --data-cache-path, or free space there",
                )
            ) from None

    def _path(self, stem: str, part: str) -> Path:
        return self.folder / f"{stem}_{part}.npy"


def cache_folder(prefix: str, data_cache_path: str | None) -> Path:
    """The folder of a data set's indices: the one that was given, else one beside the data."""
    return Path(data_cache_path) if data_cache_path else Path(f"{prefix}_cache")


def _map_array(path: Path) -> NDArray[Any]:
    # A plain view: indexing a np.memmap costs several times as much.
    array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
    return array


def _describe(array: NDArray[Any], verify: bool) -> dict[str, Any]:
    checksum = zlib.crc32(np.ascontiguousarray(array).data) if verify else None
    return {"dtype": array.dtype.str, "shape": list(array.shape), "crc32": checksum}


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
