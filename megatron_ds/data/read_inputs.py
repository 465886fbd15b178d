"""Input files of any format as one stream of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from megatron_ds.data.documents import DocumentBatch
from megatron_ds.data.hugging_face import DatasetChoice, read_dataset
from megatron_ds.data.input_files import InputFile
from megatron_ds.data.json_lines import read_line_batches, read_span
from megatron_ds.data.records import read_csv, read_parquet, read_text_files


def read_batches(
    files: Sequence[InputFile], keys: Sequence[str], batch_bytes: int, choice: DatasetChoice | None = None
) -> Iterator[DocumentBatch]:
    """Reads all files, in order.

    Args:
        files: the files.
        keys: the keys or columns with text.
        batch_bytes: bytes of a batch, or few more than one document has.
        choice: the part of Hugging Face datasets that is read, where `files` has some.

    Raises:
        DataError: a file is damaged or has other columns.
    """
    for kind, group in groupby(files, key=lambda file: file.format):
        files_of_kind = list(group)
        paths = [file.path for file in files_of_kind]
        if kind == "text":
            yield from read_text_files(paths, batch_bytes)
        elif kind in ("csv", "tsv"):
            for path in paths:
                yield from read_csv(path, "\t" if kind == "tsv" else ",", keys, batch_bytes)
        elif kind == "parquet":
            for path in paths:
                yield from read_parquet(path, keys, batch_bytes)
        elif kind == "hf":
            for path in paths:
                yield from read_dataset(str(path), choice or DatasetChoice(), keys, batch_bytes)
        else:
            yield from _read_lines(files_of_kind, batch_bytes)


def _read_lines(files: Sequence[InputFile], batch_bytes: int) -> Iterator[DocumentBatch]:
    for file in files:
        if file.span is None:
            yield from read_line_batches([file.path], batch_bytes)
        else:
            yield from read_span(file.path, file.span, batch_bytes)
