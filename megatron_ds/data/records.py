"""Reads documents from plain text, CSV and Parquet files."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_ds.data.documents import BadDocumentError, decode_utf8
from megatron_ds.data.input_files import damaged_input, open_input
from megatron_ds.data.json_lines import BYTE_ORDER_MARK
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.logging import logger

if TYPE_CHECKING:
    import pyarrow as pa

Record = dict[str, Any]

_PARQUET_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class RecordBatch:
    """Documents that their format has cut already.

    Attributes:
        places: where each stands.
        records: values by key, texts as UTF-8 bytes; None for a blank line; or what is wrong with it.
        num_bytes: bytes of all texts.
    """

    places: tuple[str, ...]
    records: tuple[Record | BadDocumentError | None, ...]
    num_bytes: int

    def __len__(self) -> int:
        return len(self.records)

    def place(self, index: int) -> str:
        """File, with the line or row where it has several."""
        return self.places[index]

    def document(self, index: int) -> Record | None:
        """The values by key, texts decoded.

        Raises:
            BadDocumentError: a text is not UTF-8, or the format was broken here.
        """
        record = self.records[index]
        if isinstance(record, BadDocumentError):
            raise record
        if record is None:
            return None
        return {key: decode_utf8(value) if isinstance(value, bytes) else value for key, value in record.items()}


class BatchCollector:
    """Puts documents together to batches of about `batch_bytes`."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._documents: list[tuple[str, Record | BadDocumentError | None]] = []
        self._num_bytes = 0

    def add(self, place: str, record: Record | BadDocumentError | None) -> RecordBatch | None:
        """Takes one document; returns a batch when it is full."""
        self._documents.append((place, record))
        if isinstance(record, dict):
            self._num_bytes += sum(len(value) for value in record.values() if isinstance(value, bytes))
        return self.finish() if self._num_bytes >= self._batch_bytes or len(self._documents) >= 10_000 else None

    def finish(self) -> RecordBatch | None:
        """The documents that are left; None when there are none."""
        if not self._documents:
            return None
        places, records = zip(*self._documents, strict=True)
        batch = RecordBatch(places, records, self._num_bytes)
        self._documents, self._num_bytes = [], 0
        return batch


def read_text_files(files: Sequence[Path], batch_bytes: int) -> Iterator[RecordBatch]:
    """Reads each file as one document under the key ``text``, without a byte order mark, otherwise as it is."""
    collector = BatchCollector(batch_bytes)
    is_told = False
    for path in files:
        with open_input(path) as file:
            content = file.read().removeprefix(BYTE_ORDER_MARK)
        if content.startswith(b'{"') and not is_told:
            logger.warning("%s is read as one text; if it has JSON lines, give --input-format jsonl", path)
            is_told = True
        if batch := collector.add(str(path), {"text": content}):
            yield batch
    if batch := collector.finish():
        yield batch


def read_csv(path: Path, delimiter: str, keys: Sequence[str], batch_bytes: int) -> Iterator[RecordBatch]:
    """Reads the rows of a CSV file as documents. The first row names the columns.

    Raises:
        DataError: a key is not a column, or is several.
    """
    collector = BatchCollector(batch_bytes)
    # Bytes that are not UTF-8 become marks here and bytes again below: the one row that has them is bad, not the file.
    with open_input(path) as file, _long_fields():
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        # Strict, as a lenient reader makes one field of everything from a stray quote to the end of the file.
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        header = _next_row(rows) or []
        if isinstance(header, BadDocumentError):
            raise DataError(damaged_input(path, f"has no row with the names of columns: it {header.detail}"))
        check_columns(path, header, keys)
        places = {key: header.index(key) for key in keys}
        line = rows.line_num + 1
        while (row := _next_row(rows)) is not None:
            if batch := collector.add(f"{path}:{line}", _csv_record(row, places, len(header))):
                yield batch
            line = rows.line_num + 1
    if batch := collector.finish():
        yield batch


@contextmanager
def _long_fields() -> Iterator[None]:
    # The csv module has one limit for all readers, 128 KiB, and no way to set that of one.
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _next_row(rows: Any) -> list[str] | BadDocumentError | None:
    try:
        return next(rows, None)
    except csv.Error as error:
        return BadDocumentError("not CSV", f"is not CSV: {error}")


def _csv_record(
    row: list[str] | BadDocumentError, places: dict[str, int], num_columns: int
) -> Record | BadDocumentError | None:
    if isinstance(row, BadDocumentError):
        return row
    if not row:
        return None
    if len(row) != num_columns:
        return BadDocumentError(
            "another number of columns", f"has {len(row)} columns where the first row has {num_columns}"
        )
    return {key: row[place].encode("utf-8", "surrogateescape") for key, place in places.items()}


def read_parquet(path: Path, keys: Sequence[str], batch_bytes: int) -> Iterator[RecordBatch]:
    """Reads the rows of a Parquet file as documents; only the columns that `keys` name.

    Raises:
        DataError: the file is damaged, or a key is not a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without a buffer, the whole column of a row group is read first, which may be gigabytes.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES) as file:
            check_columns(path, file.schema_arrow.names, keys)
            num_rows = _rows_at_a_time(file.metadata, batch_bytes)
            row_number = 1
            for table in file.iter_batches(batch_size=num_rows, columns=list(keys), use_threads=False):
                columns = {key: _values(table.column(key)) for key in keys}
                records = tuple(dict(zip(keys, row, strict=True)) for row in zip(*columns.values(), strict=True))
                places = tuple(f"{path}: row {row_number + index}" for index in range(len(records)))
                num_bytes = sum(
                    len(value) for column in columns.values() for value in column if isinstance(value, bytes)
                )
                yield RecordBatch(places, records, num_bytes)
                row_number += len(records)
    except (pa.ArrowException, OSError) as error:
        # Errors of the operating system have a number; what pyarrow reports about a damaged page has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(damaged_input(path, f"is damaged, or not a Parquet file: {error}")) from None


def _rows_at_a_time(metadata: Any, batch_bytes: int) -> int:
    num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    num_rows: int = batch_bytes * metadata.num_rows // max(1, num_bytes)
    return max(1, min(10_000, num_rows))


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def check_columns(path: Path | str, columns: Sequence[str], keys: Sequence[str]) -> None:
    """Checks that each key is the name of one column.

    Raises:
        DataError: a key is no column, or several. Names the columns that there are.
    """
    for key in keys:
        if key not in columns:
            has = ", ".join(map(repr, columns)) or "none"
            raise DataError(
                Problem(f"{path} has no column {key!r}; it has {has}", advice="name the columns with --json-keys")
            )
        if list(columns).count(key) > 1:
            raise DataError(Problem(f"{path} has more than one column {key!r}", advice="rename one of them"))
