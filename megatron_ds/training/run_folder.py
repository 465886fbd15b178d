"""What happens to the files that a run writes beside its checkpoints: those of an earlier run, and a full disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megatron_ds.errors import Problem, TrainingError
from megatron_ds.utils.logging import logger


def set_aside(folder: Path, names: Sequence[str]) -> None:
    """Renames an earlier run's files: metrics.jsonl to metrics.1.jsonl, or the first number that is free for all.

    Args:
        folder: of ``--save``.
        names: of the files; those that are not there are passed over.
    """
    there = [folder / name for name in names if (folder / name).exists()]
    if not there:
        return
    number = 1
    while any(_numbered(path, number).exists() for path in there):
        number += 1
    targets = [path.rename(_numbered(path, number)) for path in there]
    renamed = ", ".join(target.name for target in targets)
    logger.info("%s: files of an earlier run in this folder are now %s", folder, renamed)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


@contextmanager
def writing_into(path: Path) -> Iterator[None]:
    """Turns what the operating system says of a full disk, or a folder that is gone, into a message.

    Args:
        path: of what is written, where the error has none.

    Raises:
        TrainingError: a file there can't be written.
    """
    try:
        yield
    except OSError as error:
        raise TrainingError(
            Problem(
                f"{error.filename or path} can't be written: {error.strerror or error}",
                advice="see that the disk has room and that the folder can be written to, and go on with --load",
            )
        ) from error
