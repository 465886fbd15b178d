"""Which columns a file of GLUE has."""

from __future__ import annotations

from megatron_ds.errors import DataError, Problem
from megatron_ds.tasks.glue.definitions import GLUE_TASKS, GlueTask


def columns_of(task: GlueTask, first_line: list[str], path: str) -> tuple[tuple[str, ...], bool]:
    """The names of a file's columns, and whether its first line holds them.

    The official headers are known; any other is taken when it names the columns with the task's texts.

    Args:
        task: the task.
        first_line: the columns of the first line.
        path: the file, for messages.

    Raises:
        DataError: the first line is no header of this task.
    """
    header = tuple(first_line)
    if header in task.headers:
        return header, True
    others = [other.name for other in GLUE_TASKS.values() if header in other.headers]
    if others:
        raise DataError(
            Problem(
                f"{path}:1 has the header of {' or '.join(others)}, and the task is {task.name}",
                advice=f"give the files of {task.name}, or --task {others[0]}",
            )
        )
    if set(task.needed_columns) <= set(header):
        return header, True
    bare = task.bare_columns
    if bare is not None and len(header) == len(bare) and header[bare.index(task.label_column)] in task.labels:
        return bare, False
    raise DataError(_no_header(task, header, path))


def _no_header(task: GlueTask, header: tuple[str, ...], path: str) -> Problem:
    wanted = "; or ".join(", ".join(each) for each in task.headers)
    if task.bare_columns is not None:
        wanted = f"without a header: {', '.join(task.bare_columns)}; or with one: {wanted}"
    found = ", ".join(_shortened(name) for name in header)
    return Problem(
        f"{path}:1 is not the first line of a {task.name} file; it has {len(header)} columns: {found}",
        advice=f"a {task.name} file is tab-separated and has these columns: {wanted}",
    )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
