"""Reads documents from JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from megatron_ds.data.documents import BadDocumentError, decode_utf8
from megatron_ds.data.input_files import open_input, open_plain
from megatron_ds.errors import DataError, Problem

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A bracket alone in the first line, or before the first object.
_LIST_OF_OBJECTS = re.compile(rb"\s*\[\s*(\{|$)")


@dataclass(frozen=True)
class LineBatch:
    """Consecutive lines of one file.

    Attributes:
        file: the file.
        first_line: number of the first line, from 1.
        lines: the lines, with their line ends.
        offset: byte of the file at which counting the lines began; 0 where it is the whole file's.
    """

    file: Path
    first_line: int
    lines: tuple[bytes, ...]
    offset: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes in all lines."""
        return sum(map(len, self.lines))

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, index: int) -> str:
        """File and line number."""
        return f"{self.file}:{self.first_line + index + _lines_before(self.file, self.offset)}"

    def document(self, index: int) -> dict[str, object] | None:
        """The line's object; None when the line is blank.

        Raises:
            BadDocumentError: the line is not UTF-8, or no JSON object.
        """
        # Not at the start of a file alone: files that were joined have one in the middle.
        line = self.lines[index].removeprefix(BYTE_ORDER_MARK)
        return _parse(line) if line.strip() else None


def read_line_batches(files: Sequence[Path], batch_bytes: int) -> Iterator[LineBatch]:
    """Reads files line by line into batches that stop at `batch_bytes`, or with the line that passes it.

    Raises:
        DataError: a file is one JSON list, or damaged.
    """
    for path in files:
        with open_input(path) as file:
            number = 1
            while lines := tuple(file.readlines(batch_bytes)):
                if number == 1:
                    _check_first_line(path, lines[0])
                yield LineBatch(path, number, lines)
                number += len(lines)


def read_span(path: Path, span: tuple[int, int], batch_bytes: int) -> Iterator[LineBatch]:
    """Reads a part of a file, which starts and ends between two lines, like `read_line_batches`.

    Raises:
        DataError: the file is one JSON list, or packed.
    """
    start, end = span
    with open_plain(path) as file:
        file.seek(start)
        number = 1
        place = start
        while place < end:
            batch_end = min(end, place + batch_bytes)
            lines: list[bytes] = []
            while place < batch_end and (line := file.readline()):
                lines.append(line)
                place += len(line)
            if not lines:
                return
            if start == 0 and number == 1:
                _check_first_line(path, lines[0])
            yield LineBatch(path, number, tuple(lines), start)
            number += len(lines)


def _check_first_line(path: Path, line: bytes) -> None:
    """Refuses a list of objects: its lines would be bad one by one, but for the last, which has no comma behind it."""
    if _LIST_OF_OBJECTS.match(line.removeprefix(BYTE_ORDER_MARK).rstrip()):
        raise DataError(
            Problem(
                f"{path} is a JSON list, not JSON lines",
                advice=f"convert it to one object a line: jq -c '.[]' {path.name}; nothing was written",
            )
        )


# For a message only: the lines before a part of a file are not counted unless one is bad.
@lru_cache(maxsize=16)
def _lines_before(path: Path, place: int) -> int:
    count = 0
    with path.open("rb") as file:
        while place > 0 and (content := file.read(min(place, 1 << 20))):
            count += content.count(b"\n")
            place -= len(content)
    return count


def _parse(line: bytes) -> dict[str, object]:
    try:
        # Without the line end, a string that is cut off is reported as such, not as one with a line end in it.
        document = json.loads(decode_utf8(line.rstrip(b"\r\n")))
    except json.JSONDecodeError as error:
        raise BadDocumentError("not JSON", f"is not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BadDocumentError("not readable", f"can't be read: {error}") from None
    if not isinstance(document, dict):
        raise BadDocumentError("no JSON object", f"is a JSON {type(document).__name__}, not an object")
    return document
