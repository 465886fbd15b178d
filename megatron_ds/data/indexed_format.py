r"""The header of Megatron's ``.idx`` files, and the dtypes of tokens.

Layout, little endian: ``MMIDIDX\0\0``, version (uint64, 1), dtype code (uint8), number of sequences (uint64), length
of the document index (uint64), then sizes in tokens (int32 per sequence), byte pointers into the ``.bin`` (int64 per
sequence), and the document index (int64: the first sequence of each document, then the number of sequences).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from megatron_ds.errors import DataError, Problem

MAGIC = b"MMIDIDX\x00\x00"
_OLDER_MAGIC = b"TNTIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

# Code 7 is float32 in Megatron-LM and float64 in older forks; the length of the .bin tells which.
DTYPES: dict[int, tuple[DTypeLike, ...]] = {
    1: (np.uint8,),
    2: (np.int8,),
    3: (np.int16,),
    4: (np.int32,),
    5: (np.int64,),
    6: (np.float64,),
    7: (np.float32, np.float64),
    8: (np.uint16,),
}


@dataclass(frozen=True)
class IndexHeader:
    """What the first bytes of an ``.idx`` say.

    Attributes:
        dtype_code: 1–8, a key of `DTYPES`.
        num_sequences: number of sequences.
        document_index_length: number of documents + 1.
    """

    dtype_code: int
    num_sequences: int
    document_index_length: int

    @property
    def file_size(self) -> int:
        """Bytes that an ``.idx`` with this header has."""
        return HEADER.size + self.num_sequences * (4 + 8) + self.document_index_length * 8

    def to_bytes(self) -> bytes:
        """The header as it stands in the file."""
        return HEADER.pack(MAGIC, VERSION, self.dtype_code, self.num_sequences, self.document_index_length)


def read_header(idx_file: Path) -> IndexHeader:
    """Reads and checks the header of an ``.idx`` file, and the file's size.

    Raises:
        DataError: the file is not a Megatron index, of another version, truncated, or longer than its header says.
    """
    size = idx_file.stat().st_size
    with idx_file.open("rb") as file:
        start = file.read(HEADER.size)
    if start[: len(_OLDER_MAGIC)] == _OLDER_MAGIC:
        raise DataError(_other_format(idx_file, "of the older `lazy` and `cached` implementations"))
    if start[: len(MAGIC)] != MAGIC:
        raise DataError(broken_file(idx_file, "is not a Megatron index: it does not start with MMIDIDX"))
    if len(start) < HEADER.size:
        raise DataError(broken_file(idx_file, f"is truncated: {size} bytes, its header alone has {HEADER.size}"))
    _, version, dtype_code, num_sequences, document_index_length = HEADER.unpack(start)
    if version != VERSION:
        raise DataError(broken_file(idx_file, f"has version {version}; version {VERSION} can be read"))
    if dtype_code not in DTYPES:
        raise DataError(broken_file(idx_file, f"has dtype code {dtype_code}; codes 1 to 8 are known"))
    header = IndexHeader(dtype_code, num_sequences, document_index_length)
    if num_sequences and size == header.file_size + num_sequences:
        raise DataError(_other_format(idx_file, "of a multimodal data set, with a mode for each sequence"))
    if size != header.file_size:
        relation = "is truncated" if size < header.file_size else "is longer than its header says"
        raise DataError(broken_file(idx_file, f"{relation}: {size} bytes, expected {header.file_size}"))
    return header


def _other_format(path: Path, kind: str) -> Problem:
    return Problem(
        f"{path} is an index {kind}, which can't be read: only Megatron's memory-mapped text format can",
        advice="preprocess the data again (Megatron's tools: --dataset-impl mmap, which is their default)",
    )


def broken_file(path: Path, what: str) -> Problem:
    """The problem of a data file that can't be used."""
    return Problem(f"{path} {what}", advice="copy the file again, or preprocess the data again")


def dtype_code(dtype: DTypeLike) -> int:
    """The code of a token dtype."""
    return next(code for code, known in DTYPES.items() if np.dtype(dtype) in [np.dtype(each) for each in known])


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """The smallest dtype that holds every id of a vocabulary exactly: uint16 up to 65536 ids, else int32."""
    return np.dtype(np.uint16) if vocab_size <= 2**16 else np.dtype(np.int32)


def byte_pointers(sizes: NDArray[np.int32], itemsize: int) -> NDArray[np.int64]:
    """Where each sequence starts in the ``.bin``, in bytes.

    Args:
        sizes: tokens per sequence, [N].
        itemsize: bytes per token.

    Returns:
        [N] in int64: sums of small integers would wrap beyond 2 GiB.
    """
    pointers = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], dtype=np.int64, out=pointers[1:])
    return pointers * itemsize
