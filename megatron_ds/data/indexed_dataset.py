"""Reader and writer of Megatron's ``.bin``/``.idx`` pairs."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from megatron_ds.data.indexed_format import (
    DTYPES,
    HEADER,
    IndexHeader,
    broken_file,
    byte_pointers,
    dtype_code,
    read_header,
)
from megatron_ds.data.replace_files import NewFile, put_in_place, temporary_suffix
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.text import counted

Array = NDArray[Any]

# What is held at a time while a file is copied, and while an index is written or checked.
COPY_BYTES = 16 << 20
INDEX_ENTRIES = 1 << 20


def bin_path(prefix: str) -> Path:
    """The file with the tokens."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str) -> Path:
    """The file with sizes, pointers and documents."""
    return Path(f"{prefix}.idx")


class IndexedDataset:
    """Sequences of tokens in a memory-mapped ``.bin``/``.idx`` pair; nothing is read before it is used.

    Args:
        prefix: path of the two files without their suffix.

    Attributes:
        tokens: all tokens, [num_tokens].
        sizes: tokens per sequence, int32 [num_sequences].
        pointers: first byte of each sequence, int64 [num_sequences].
        document_index: first sequence of each document, then the number of sequences, int64 [num_documents + 1].

    Raises:
        DataError: a file is missing, truncated, no Megatron index, or the two do not belong together; or a size is
            negative.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        for path in (idx_path(prefix), bin_path(prefix)):
            if not path.is_file():
                advice = "check the path, or preprocess the data"
                if prefix.endswith((".bin", ".idx")):
                    advice = f"give the prefix without the suffix: {prefix[:-4]}"
                raise DataError(Problem(f"data file not found: {path}", advice=advice))
        header = read_header(idx_path(prefix))
        buffer = _map(idx_path(prefix))
        count = header.num_sequences
        self.sizes: NDArray[np.int32] = np.frombuffer(buffer, np.int32, count, HEADER.size)
        self.pointers: NDArray[np.int64] = np.frombuffer(buffer, np.int64, count, HEADER.size + 4 * count)
        self.document_index: NDArray[np.int64] = np.frombuffer(
            buffer, np.int64, header.document_index_length, HEADER.size + 12 * count
        )
        # Before the sum: with a negative size in it, the .bin would be called too long.
        if (bad := _first_negative(self.sizes)) is not None:
            raise DataError(broken_file(idx_path(prefix), f"has {self.sizes[bad]} tokens for sequence {bad}"))
        self.num_tokens = int(self.sizes.sum(dtype=np.int64))
        self.dtype = self._find_dtype(header)
        self._check_layout()
        self.tokens: Array = (
            np.frombuffer(_map(bin_path(prefix)), self.dtype) if self.num_tokens else np.empty(0, self.dtype)
        )

    def _find_dtype(self, header: IndexHeader) -> np.dtype[Any]:
        path = bin_path(self.prefix)
        size = path.stat().st_size
        candidates = [np.dtype(each) for each in DTYPES[header.dtype_code]]
        for dtype in candidates:
            if size == self.num_tokens * dtype.itemsize:
                return dtype
        expected = self.num_tokens * candidates[0].itemsize
        relation = "is truncated" if size < expected else "is longer than its .idx says"
        tokens = f"{self.num_tokens} tokens of {candidates[0]}"
        raise DataError(broken_file(path, f"{relation}: {size} bytes, expected {expected} ({tokens})"))

    def _check_layout(self) -> None:
        end = int(self.pointers[-1]) + int(self.sizes[-1]) * self.dtype.itemsize if len(self.sizes) else 0
        if end != self.num_tokens * self.dtype.itemsize or (len(self.sizes) and self.pointers[0] != 0):
            raise DataError(broken_file(idx_path(self.prefix), "has byte pointers that do not match its sizes"))
        documents = self.document_index
        if len(documents) == 0 or documents[0] != 0 or documents[-1] != len(self.sizes):
            raise DataError(
                broken_file(idx_path(self.prefix), "has a document index that does not cover its sequences")
            )

    def check_index(self) -> None:
        """Checks every entry of the index, which reads all of it once (a second for a hundred million documents).

        Opening the pair compares lengths and ends only. A damaged entry in between would show up as a wrong sample.

        Raises:
            DataError: a pointer is not the sum of the sizes before it, or the document index goes back or beyond the
                sequences. Names the file and the first such entry.
        """
        path = idx_path(self.prefix)
        expected = 0
        for first, sizes in _in_chunks(self.sizes):
            pointers = self.pointers[first : first + len(sizes)]
            sums = expected + byte_pointers(sizes, self.dtype.itemsize)
            if (bad := _first(pointers != sums)) is not None:
                found = f"has byte pointer {pointers[bad]} for sequence {first + bad}; its sizes add up to {sums[bad]}"
                raise DataError(broken_file(path, found))
            expected = int(sums[-1]) + int(sizes[-1]) * self.dtype.itemsize
        # It starts at 0 and ends at the number of sequences (see `_check_layout`).
        for first, starts in _in_chunks(self.document_index):
            chunk = self.document_index[first : first + len(starts) + 1]
            if (bad := _first((chunk[1:] < chunk[:-1]) | (chunk[1:] > len(self.sizes)))) is not None:
                start, end = chunk[bad : bad + 2]
                rule = "its document index goes back" if end < start else f"it has {len(self.sizes)} sequences"
                raise DataError(broken_file(path, f"has document {first + bad} from sequence {start} to {end}; {rule}"))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, sequence: int) -> Array:
        """The tokens of one sequence, as a read-only view in the file's dtype."""
        size = self.sizes[sequence]
        start = self.pointers[sequence] // self.dtype.itemsize
        return self.tokens[start : start + size]

    def __reduce__(self) -> tuple[type[IndexedDataset], tuple[str]]:
        # A worker process maps the files again: pickling the arrays would copy the corpus.
        return IndexedDataset, (self.prefix,)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_index) - 1

    def document_start(self, document: int) -> int:
        """Position in `tokens` of a document's first token; for `num_documents`, the number of tokens."""
        sequence = self.document_index[document]
        if sequence == len(self.sizes):
            return self.num_tokens
        return int(self.pointers[sequence]) // self.dtype.itemsize

    def document_lengths(self, first: int, end: int) -> NDArray[np.int64]:
        """Tokens of each document in ``[first, end)``, [end - first]; a document may be several sequences, or none."""
        sequences = self.document_index[first : end + 1]
        ends_file = sequences == len(self.sizes)
        starts = np.full(len(sequences), self.num_tokens)
        starts[~ends_file] = self.pointers[sequences[~ends_file]] // self.dtype.itemsize
        return np.diff(starts)


def _in_chunks(array: Array) -> Iterator[tuple[int, Array]]:
    for first in range(0, len(array), INDEX_ENTRIES):
        yield first, array[first : first + INDEX_ENTRIES]


def _first_negative(sizes: NDArray[np.int32]) -> int | None:
    return int((sizes < 0).argmax()) if len(sizes) and sizes.min() < 0 else None


def _first(wrong: NDArray[np.bool_]) -> int | None:
    return int(wrong.argmax()) if wrong.any() else None


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class _Spool:
    """Small numbers that wait for their place in an index: on disk, as a corpus may have a billion documents.

    Args:
        folder: where the file is, which has no name: it is gone with the process, however that ends.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the builder)
        self.count = 0

    def append(self, numbers: NDArray[Any]) -> None:
        """Appends numbers below 2^31."""
        self._file.write(numbers.astype(np.int32, copy=False).tobytes())
        self.count += len(numbers)

    def chunks(self) -> Iterator[NDArray[np.int32]]:
        """All numbers in order, piece by piece."""
        self._file.seek(0)
        while content := self._file.read(4 * INDEX_ENTRIES):
            yield np.frombuffer(content, np.int32)

    def close(self) -> None:
        """Gives the space back."""
        with contextlib.suppress(OSError):
            self._file.close()


class IndexedDatasetBuilder:
    """Writes a ``.bin``/``.idx`` pair. Nothing stands under the final names before `finalize`.

    As a context manager it finalizes at the end of the block, and removes what it wrote after an exception.

    Args:
        prefix: path of the two files without their suffix. The folder is made when it is missing.
        dtype: dtype of the tokens in the file; see `token_dtype`.
    """

    def __init__(self, prefix: str, dtype: DTypeLike) -> None:
        self.prefix = prefix
        self.dtype = np.dtype(dtype)
        self.num_tokens = 0
        bin_path(prefix).parent.mkdir(parents=True, exist_ok=True)
        # Tokens per sequence, and sequences per document.
        self._sizes = _Spool(bin_path(prefix).parent)
        self._sequences = _Spool(bin_path(prefix).parent)
        suffix = temporary_suffix("part")
        self._temporary_bin = Path(f"{bin_path(prefix)}{suffix}")
        self._temporary_idx = Path(f"{idx_path(prefix)}{suffix}")
        self._file = self._temporary_bin.open("xb")

    @property
    def num_documents(self) -> int:
        """Documents so far."""
        return self._sequences.count

    def size_text(self) -> str:
        """How much there is so far: ``1 document, 340 tokens of uint16``."""
        documents, tokens = counted(self.num_documents, "document"), counted(self.num_tokens, "token")
        return f"{documents}, {tokens} of {self.dtype}"

    def __enter__(self) -> IndexedDatasetBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finalize()
        finally:
            self.abort()

    def add_document(self, tokens: Array) -> None:
        """Appends one document of one sequence.

        Raises:
            DataError: an id does not fit into the dtype.
        """
        self.add_documents(tokens, np.array([len(tokens)], dtype=np.int64))

    def add_documents(self, tokens: Array, lengths: NDArray[Any], sequences: NDArray[Any] | None = None) -> None:
        """Appends documents.

        Args:
            tokens: the tokens of all sequences, one after the other, [sum of lengths].
            lengths: tokens per sequence, [number of sequences].
            sequences: sequences per document, [number of documents]; None: each document is one sequence.

        Raises:
            DataError: an id does not fit into the dtype, or a sequence has 2^31 tokens or more.
        """
        assert int(lengths.sum()) == len(tokens), "the lengths describe the tokens"
        assert sequences is None or int(sequences.sum()) == len(lengths), "the documents are made of all sequences"
        if len(lengths) and lengths.max() > np.iinfo(np.int32).max:
            raise DataError(f"a document has {lengths.max()} tokens; the format's limit is {np.iinfo(np.int32).max}")
        self._file.write(self._as_stored(tokens).tobytes())
        self._sizes.append(lengths)
        self._sequences.append(np.ones_like(lengths) if sequences is None else sequences)
        self.num_tokens += len(tokens)

    def add_dataset(self, indexed: IndexedDataset) -> None:
        """Appends all documents of a finished pair of the same dtype, copying its bytes.

        Args:
            indexed: the pair.

        Raises:
            DataError: the dtypes differ, or the file changes while it is read.
        """
        if indexed.dtype != self.dtype:
            raise DataError(f"{bin_path(indexed.prefix)} has {indexed.dtype} tokens, {self.prefix} has {self.dtype}")
        num_bytes = 0
        with bin_path(indexed.prefix).open("rb") as source:
            while piece := source.read(COPY_BYTES):
                num_bytes += self._file.write(piece)
        if num_bytes != indexed.num_tokens * self.dtype.itemsize:
            raise DataError(broken_file(bin_path(indexed.prefix), "changed while it was read"))
        for _, sizes in _in_chunks(indexed.sizes):
            self._sizes.append(sizes)
        for first, starts in _in_chunks(indexed.document_index[:-1]):
            self._sequences.append(np.diff(indexed.document_index[first : first + len(starts) + 1]))
        self.num_tokens += indexed.num_tokens

    def _as_stored(self, tokens: Array) -> Array:
        if tokens.dtype == self.dtype or len(tokens) == 0:
            return tokens.astype(self.dtype, copy=False)
        limits = np.iinfo(self.dtype)
        if tokens.min() < limits.min or tokens.max() > limits.max:
            wrong = tokens.max() if tokens.max() > limits.max else tokens.min()
            raise DataError(f"token id {wrong} does not fit into {self.dtype} ({limits.min} to {limits.max})")
        return tokens.astype(self.dtype)

    def finalize(self) -> None:
        """Writes the index, if `prepare` has not, and moves both files to their final names.

        Raises:
            OSError: that can't be done; see `put_in_place`.
        """
        self.prepare()
        put_in_place([self.new_files()])

    def new_files(self) -> tuple[NewFile, NewFile]:
        """What there is to put in place after `prepare`: the ``.bin``, and the ``.idx`` that describes it."""
        return NewFile(bin_path(self.prefix), self._temporary_bin), NewFile(idx_path(self.prefix), self._temporary_idx)

    def prepare(self) -> None:
        """Writes everything that there is to write, under temporary names: a full disk is found out here.

        Nothing can be added afterwards.
        """
        if self._file.closed:
            return
        header = IndexHeader(dtype_code(self.dtype), self._sizes.count, self._sequences.count + 1)
        with self._temporary_idx.open("wb") as file:
            file.write(header.to_bytes())
            for array in self._index_arrays():
                file.write(array.tobytes())
            _flush_to_disk(file)
        _flush_to_disk(self._file)
        self._file.close()
        self._sizes.close()
        self._sequences.close()

    def _index_arrays(self) -> Iterator[Array]:
        """The body of the index piece by piece: it can be larger than memory."""
        yield from self._sizes.chunks()
        num_bytes = 0
        for sizes in self._sizes.chunks():
            yield num_bytes + byte_pointers(sizes, self.dtype.itemsize)
            num_bytes += int(sizes.sum(dtype=np.int64)) * self.dtype.itemsize
        yield np.zeros(1, dtype=np.int64)
        num_sequences = 0
        for sequences in self._sequences.chunks():
            yield num_sequences + np.cumsum(sequences, dtype=np.int64)
            num_sequences += int(sequences.sum(dtype=np.int64))

    def abort(self) -> None:
        """Removes what this builder wrote and is not in its place. Files of an earlier run stay as they are."""
        # On a full disk, closing fails as well: it writes what is still in the buffer.
        with contextlib.suppress(OSError):
            self._file.close()
        self._sizes.close()
        self._sequences.close()
        self._temporary_bin.unlink(missing_ok=True)
        self._temporary_idx.unlink(missing_ok=True)


def _flush_to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
