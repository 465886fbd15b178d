"""A file that is hashed while it is written, and that is on disk when it is closed."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

# Smaller pieces are hashed at once: handing them to another thread would take longer.
_HANDED_OVER = 2**20
_BUFFER_BYTES = 2**20
_SAMPLE_BYTES = 2**16


@dataclass(frozen=True)
class FileRecord:
    """What a manifest says of a file.

    Attributes:
        bytes: its size.
        sha256: its hash, in hexadecimal digits.
        sample: the hash of some of it (`sample_of`): what a load can afford to compare.
    """

    bytes: int
    sha256: str
    sample: str


class HashedFile:
    """A new file for ``torch.save`` and others that write one piece after the other.

    Large pieces are hashed by a thread of its own while they are written, so that the hash takes no time where there is
    a core for it.

    Args:
        path: of the file; what was there is replaced.

    Raises:
        OSError: the file can't be made, or written to. The first such error is kept, for a writer in between may raise
            another one over it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._file = path.open("wb", buffering=_BUFFER_BYTES)
        self._hashing = ThreadPoolExecutor(1, "hashing")

    def write(self, piece: bytes | memoryview) -> int:
        """Appends a piece; returns its size in bytes."""
        size = len(piece) if isinstance(piece, bytes) else piece.nbytes
        if size >= _HANDED_OVER:
            hashed = self._hashing.submit(self._hash.update, piece)
            try:
                self._guarded_write(piece)
            finally:
                hashed.result()  # the caller may change the piece's memory afterwards
        else:
            self._hash.update(piece)
            self._guarded_write(piece)
        self._bytes += size
        return size

    def _guarded_write(self, piece: bytes | memoryview) -> None:
        try:
            self._file.write(piece)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Nothing: the file is flushed when it is complete."""

    def complete(self) -> FileRecord:
        """Waits until all of it is on disk."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self.error = self.error or error
            raise
        return FileRecord(self._bytes, self._hash.hexdigest(), sample_of(self.path))

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hashing.shutdown()
        try:
            self._file.close()
        except OSError:
            # Closing writes what is left in the buffer, and fails as the write before it did.
            if kind is None:
                raise
        if self.error is not None and self.error is not error:
            raise self.error


def sample_of(path: Path) -> str:
    """SHA-256 of 64 KiB from each of the beginning, the middle and the end of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for start in (0, (size - _SAMPLE_BYTES) // 2, size - _SAMPLE_BYTES):
            file.seek(max(0, start))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Waits until the names of a folder's files are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Writes a small file whole or not at all, and waits until it is on disk."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
