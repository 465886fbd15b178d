"""A folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_ds.errors import CheckpointError, Problem, Source


def check_output(output: Path) -> None:
    """Refuses a place where something is already.

    Raises:
        CheckpointError: `output` is a file, or a folder that is not empty.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise CheckpointError(
            Problem(
                f"{output} exists already, and nothing is overwritten",
                (Source("output", str(output), "--output"),),
                "give another folder, or remove it",
            )
        )


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` to write to; it becomes `output` when the block ends, and vanishes when it fails.

    Raises:
        CheckpointError: the system can't write.
    """
    partial = output.absolute().with_name(f".{output.absolute().name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(output)
    except OSError as error:
        raise CheckpointError(
            Problem(f"{output} can't be written: {error}", advice="check permissions and free space; nothing was left")
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
