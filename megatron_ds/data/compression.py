"""Opens compressed files, and recognises them by their first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from backports import zstd

_PIECE_BYTES = 1 << 16

# No text starts so: none of it is UTF-8, or, for bzip2, is likely to be meant as text.
_MAGIC = {
    ".gz": b"\x1f\x8b",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\x00",
    ".zst": b"\x28\xb5\x2f\xfd",
}
_BZIP2_BLOCK = b"1AY&SY"
_NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}


class _Decompressor(Protocol):
    """What `bz2` and `lzma` have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Streams(io.RawIOBase):
    """The content of compressed streams that stand one after the other in a file.

    The files of Python's modules take whatever follows the first stream and is none for the end of the file, so that
    a damaged header would silently cost all documents behind it.

    Args:
        path: the file.
        start_stream: makes a decompressor for one stream.
        padding: bytes of zeros that may stand between and behind the streams come in units of this; 0: none may.
    """

    def __init__(self, path: Path, start_stream: Callable[[], _Decompressor], padding: int) -> None:
        self._start_stream = start_stream
        self._padding = padding
        self._decompressor = start_stream()
        self._file: BinaryIO = path.open("rb")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer).cast("B") as place:
            content = self._read(len(place))
            place[: len(content)] = content
        return len(content)

    def _read(self, most: int) -> bytes:
        """Some bytes, `most` at most; none at the end.

        Raises:
            EOFError: the last stream is cut off.
            OSError: a stream is damaged, or there is something else (bzip2).
            lzma.LZMAError: the same (xz).
        """
        content = b""
        while not content:
            piece = b""
            if self._decompressor.eof:
                piece = self._next_stream()
                if not piece:
                    return b""
                self._decompressor = self._start_stream()
            elif self._decompressor.needs_input:
                piece = self._file.read(_PIECE_BYTES)
                if not piece:
                    raise EOFError("it ends before the end of a compressed stream")
            content = self._decompressor.decompress(piece, most)
        return content

    def _next_stream(self) -> bytes:
        """The first bytes of what follows a stream; none at the end of the file."""
        piece = self._decompressor.unused_data or self._file.read(_PIECE_BYTES)
        if not self._padding:
            return piece
        num_zeros = 0
        while piece and not (rest := piece.lstrip(b"\0")):
            num_zeros += len(piece)
            piece = self._file.read(_PIECE_BYTES)
        if piece:
            num_zeros += len(piece) - len(rest)
            piece = rest
        if num_zeros % self._padding:
            raise EOFError(f"it has {num_zeros} bytes of padding behind a stream, no multiple of {self._padding}")
        return piece


def _open_gz(path: Path) -> Any:
    if path.stat().st_size == 0:
        raise EOFError("it has no bytes")
    return gzip.open(path, "rb")


def _open_bz2(path: Path) -> Any:
    return _Streams(path, bz2.BZ2Decompressor, padding=0)


def _open_xz(path: Path) -> Any:
    # Not FORMAT_AUTO: .lzma's header has no magic, so that garbage behind a stream may look like one.
    return _Streams(path, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=4)


def _open_zst(path: Path) -> Any:
    # By default, files of `zstd --long=28` and more are refused: their window has to be in memory, 2 GiB at most.
    return zstd.open(path, "rb", options={zstd.DecompressionParameter.window_log_max: 31})


# By suffix. Each raises when it meets anything but whole streams, up to the end of the file.
OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": _open_gz,
    ".bz2": _open_bz2,
    ".xz": _open_xz,
    ".zst": _open_zst,
}


def looks_compressed(start: bytes) -> tuple[str, str] | None:
    """What a file is compressed with.

    Args:
        start: its first 10 bytes or more.

    Returns:
        The name of the format and its suffix; None for what may be text.
    """
    for suffix, magic in _MAGIC.items():
        if start.startswith(magic) and (suffix != ".bz2" or start[4:10] == _BZIP2_BLOCK):
            return _NAMES[suffix], suffix
    return None
