"""What the commands that write token files share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megatron_ds.data.indexed_dataset import bin_path, idx_path
from megatron_ds.data.replace_files import leftovers
from megatron_ds.data.token_info import info_path
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.logging import logger


@contextmanager
def named_io_errors(output_prefix: str) -> Iterator[None]:
    """Turns what the system says about reading the input or writing the output into a message.

    Args:
        output_prefix: the files that are written in the block.

    Raises:
        DataError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            Problem(
                f"the input can't be read, or {output_prefix} can't be written: {error}",
                advice="check permissions and free space; nothing was written",
            )
        ) from None


def files_of(prefix: str) -> tuple[Path, Path, Path]:
    """The files that are written for one pair."""
    return bin_path(prefix), idx_path(prefix), info_path(prefix)


def folders_in_the_way(prefixes: Sequence[str]) -> list[Problem]:
    """The problems of pairs in whose place there are folders."""
    return [
        Problem(f"{path} is a folder, where a file is to be written", advice="move it away, or write to another prefix")
        for prefix in prefixes
        for path in files_of(prefix)
        if path.is_dir()
    ]


def tell_of_leftovers(prefixes: Sequence[str], output_prefix: str | None = None) -> None:
    """Tells which files a run that was killed has left beside those of the same names.

    Args:
        prefixes: paths of the pairs that are about to be written, all in one folder.
        output_prefix: what else temporary files are named after.
    """
    folder = Path(prefixes[0]).parent
    names = [re.escape(path.name) for prefix in prefixes for path in files_of(prefix)]
    # Not removed: another machine that shares the folder may be writing them.
    also = [re.escape(Path(output_prefix).name)] if output_prefix is not None else []
    if left := leftovers(folder, "|".join(names + also), "part"):
        logger.warning(
            "%s in %s: left by a run that was killed, or written by one that still runs; remove them in the first case",
            ", ".join(left),
            folder,
        )
    if left := leftovers(folder, "|".join(names), "old"):
        logger.warning(
            "%s in %s: the earlier files that a run was replacing when it was killed; to have them back, rename all of "
            "them to their names without .old-…, otherwise remove them",
            ", ".join(left),
            folder,
        )
