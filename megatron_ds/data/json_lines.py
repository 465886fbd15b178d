"""Reads documents from JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.errors import DataError, Problem

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class LineBatch:
    """Consecutive lines of one file.

    Attributes:
        file: the file.
        first_line: number of the first line, from 1.
        lines: the lines, with their line ends.
    """

    file: Path
    first_line: int
    lines: tuple[bytes, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes in all lines."""
        return sum(map(len, self.lines))


def read_line_batches(files: Sequence[Path], batch_bytes: int) -> Iterator[LineBatch]:
    """Reads files line by line into batches that stop at `batch_bytes`, or with the line that passes it."""
    for path in files:
        with path.open("rb") as file:
            if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
                file.seek(0)
            number = 1
            while lines := tuple(file.readlines(batch_bytes)):
                yield LineBatch(path, number, lines)
                number += len(lines)


def read_texts(batch: LineBatch, keys: Sequence[str]) -> dict[str, list[str]]:
    """The texts of each key in a batch, in order; a blank line has an empty text.

    Raises:
        DataError: a line is not a JSON object, lacks a key, or has something else than text there. Names file and line.
    """
    texts: dict[str, list[str]] = {key: [] for key in keys}
    for number, line in enumerate(batch.lines, batch.first_line):
        place = f"{batch.file}:{number}"
        document = _parse(line, place) if line.strip() else None
        for key in keys:
            texts[key].append("" if document is None else _text(document, key, place))
    return texts


def _parse(line: bytes, place: str) -> dict[str, object]:
    try:
        # Without the line end, a string that is cut off is reported as such, not as one with a line end in it.
        document = json.loads(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _bad_line(place, f"is not UTF-8: byte {line[error.start]:#04x} at position {error.start}") from None
    except json.JSONDecodeError as error:
        raise _bad_line(place, f"is not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise _bad_line(place, f"can't be read: {error}") from None
    if not isinstance(document, dict):
        raise _bad_line(place, f"is a JSON {type(document).__name__}, not an object")
    return document


def _text(document: dict[str, object], key: str, place: str) -> str:
    if key not in document:
        raise _bad_line(place, f"has no key {key!r}; it has {', '.join(map(repr, document)) or 'none'}")
    text = document[key]
    if not isinstance(text, str):
        found = "null" if text is None else f"a value of type {type(text).__name__}"
        raise _bad_line(place, f"has {found} under {key!r} where a text belongs")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise _bad_line(
            place, f"has half of a surrogate pair (\\u{code:04x}) under {key!r}, which is no text"
        ) from None
    return text


def _bad_line(place: str, what: str) -> DataError:
    return DataError(Problem(f"{place} {what}", advice="correct or remove the line; nothing was written"))
