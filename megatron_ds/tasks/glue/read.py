"""Reads the TSV files of GLUE."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from megatron_ds.config.spelling import did_you_mean
from megatron_ds.data.documents import BadDocumentError, decode_utf8
from megatron_ds.data.input_files import open_input
from megatron_ds.data.json_lines import BYTE_ORDER_MARK
from megatron_ds.errors import DataError, Problem
from megatron_ds.tasks.examples import Example, LeftOut
from megatron_ds.tasks.glue.definitions import GlueTask
from megatron_ds.tasks.glue.header import columns_of
from megatron_ds.utils.text import counted

_LOWEST_SCORE, _HIGHEST_SCORE = 0.0, 5.0


@dataclass(frozen=True)
class GlueFile:
    """One file.

    Attributes:
        path: the file.
        examples: its examples, at least one.
        has_labels: whether they have labels.
        left_out: lines that are not used; log it.
    """

    path: str
    examples: tuple[Example, ...]
    has_labels: bool
    left_out: LeftOut = field(default_factory=LeftOut)


@dataclass(frozen=True)
class _Layout:
    """Where in a line things are.

    Attributes:
        columns: the names of all columns.
        text_a: place of the first text.
        text_b: place of the second one, or None.
        label: place of the label, or None.
        uid: place of the example's number, or None: they are counted.
    """

    columns: tuple[str, ...]
    text_a: int
    text_b: int | None
    label: int | None
    uid: int | None


def read_glue(task: GlueTask, path: Path, *, need_labels: bool) -> GlueFile:
    """Reads one file of a task.

    Quotes are letters like any other: the official files have single ones in the middle of texts. A byte order mark
    is skipped, as are blank lines. The file may be compressed (.gz, .bz2, .xz, .zst).

    Args:
        task: the task.
        path: its train.tsv, dev.tsv or test.tsv.
        need_labels: refuse a file without labels.

    Raises:
        DataError: the file is missing, empty, of another task, has no labels where they are needed; or a line is not
            UTF-8, has another number of columns or an unknown label. Names file and line.
    """
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise DataError(Problem(f"{path} is empty", advice=f"give a file of {task.name} with examples"))
    columns, has_header = columns_of(task, first[1], str(path))
    layout = _layout(task, columns)
    if layout.label is None and need_labels:
        advice = f"train and validate on files with the column {task.label_column!r}; test files go to --test-data"
        raise DataError(Problem(f"{path} has no labels: its columns are {', '.join(columns)}", advice=advice))
    examples: list[Example] = []
    left_out = LeftOut()
    for number, values in lines if has_header else _with_first(first, lines):
        place = f"{path}:{number}"
        if len(values) < len(columns) and task.skips_short_lines:
            left_out.add("with too few columns", place)
            continue
        if len(values) != len(columns):
            raise DataError(_wrong_count(columns, len(values), place))
        examples.append(_example(task, layout, values, len(examples), place))
    if not examples:
        skipped = f" ({left_out.describe('line')})" if left_out else ""
        raise DataError(Problem(f"{path} has no examples{skipped}", advice=f"give a file of {task.name} with examples"))
    return GlueFile(str(path), tuple(examples), layout.label is not None, left_out)


def _with_first(
    first: tuple[int, list[str]], lines: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    yield first
    yield from lines


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and columns of each line that is not blank."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise DataError(Problem(f"{path} {what}", advice="give the task's TSV files, for instance MNLI/train.tsv"))
    with open_input(path) as file:
        # Lines end with \n alone: texts have other characters that Python's text files would take for line ends.
        for number, line in enumerate(file, 1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if not text.strip():
                continue
            try:
                yield number, decode_utf8(text.rstrip(b"\r\n")).split("\t")
            except BadDocumentError as error:
                advice = "convert the file to UTF-8, for instance with iconv"
                raise DataError(Problem(f"{path}:{number} {error.detail}", advice=advice)) from None


def _layout(task: GlueTask, columns: tuple[str, ...]) -> _Layout:
    def place(name: str) -> int | None:
        return columns.index(name) if name in columns else None

    text_b = None if task.text_b is None else columns.index(task.text_b)
    return _Layout(columns, columns.index(task.text_a), text_b, place(task.label_column), place(task.uid_column))


def _example(task: GlueTask, layout: _Layout, values: list[str], number: int, place: str) -> Example:
    return Example(
        uid=str(number) if layout.uid is None else values[layout.uid],
        text_a=values[layout.text_a],
        text_b=None if layout.text_b is None else values[layout.text_b],
        label=None if layout.label is None else _label(task, values[layout.label], place),
    )


def _label(task: GlueTask, text: str, place: str) -> float:
    if task.is_regression:
        return _score(task, text, place)
    if text in task.labels:
        return task.labels.index(text)
    known = ", ".join(task.labels)
    raise DataError(
        Problem(
            f"{place} has the unknown label {text!r}{did_you_mean(text, task.labels)}",
            advice=f"the labels of {task.name} are {known}, in the column {task.label_column!r}",
        )
    )


def _score(task: GlueTask, text: str, place: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    # False for what is no number too.
    if _LOWEST_SCORE <= score <= _HIGHEST_SCORE:
        return score
    advice = f"the labels of {task.name} are scores from 0 to 5, in the column {task.label_column!r}"
    raise DataError(Problem(f"{place} has the score {text!r}", advice=advice))


def _wrong_count(columns: tuple[str, ...], found: int, place: str) -> Problem:
    return Problem(
        f"{place} has {counted(found, 'column')}, and the file has {len(columns)}: {', '.join(columns)}",
        advice="columns are separated by single tabs, and texts have none",
    )
