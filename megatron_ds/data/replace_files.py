"""Puts finished files in the place of earlier ones, so that an error changes nothing and a kill loses nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.utils.logging import logger

_MAX_HOST_LETTERS = 32


def temporary_suffix(kind: str) -> str:
    """What a temporary file's name ends with, never the same twice.

    The process id alone would not do: containers that share a folder often have the same ones.

    Args:
        kind: ``part`` for what is being written, ``old`` for what is being replaced.

    Returns:
        ``.<kind>-<host>-<process id>-<eight hex digits>``.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:_MAX_HOST_LETTERS]
    return f".{kind}-{host}-{os.getpid()}-{secrets.token_hex(4)}"


def leftovers(folder: Path, name_pattern: str, kind: str) -> list[str]:
    """Names of the files with a temporary suffix in a folder, sorted.

    Args:
        folder: the folder.
        name_pattern: regular expression for what stands before the suffix.
        kind: ``part`` or ``old``.
    """
    if not folder.is_dir():
        return []
    pattern = re.compile(rf"({name_pattern})\.{kind}-[A-Za-z0-9._-]+-\d+-[0-9a-f]{{8}}")
    return sorted(path.name for path in folder.iterdir() if pattern.fullmatch(path.name))


@dataclass(frozen=True)
class NewFile:
    """A file that takes its place.

    Attributes:
        path: its place, where an earlier file may be.
        temporary: where it is now, complete; None: there is no new file, and the earlier one only goes.
    """

    path: Path
    temporary: Path | None


def put_in_place(groups: Sequence[Sequence[NewFile]]) -> None:
    """Puts all new files in the place of the earlier ones, or, after an error, none.

    In each group, the last file is the first to go and the last to come: while it is there, the files beside it belong
    to it. Earlier files are renamed to ``<path>.old-…``, and removed when all groups are in place. So a process that is
    killed on the way leaves each group as it was, or new, or without its last file and all earlier files beside it. Of
    several processes of one machine that do this in one folder, the last one's files stay, not some of each.

    Args:
        groups: files that belong together, all in one folder.

    Raises:
        OSError: a file could not be renamed, or a folder is in its place. Everything is where it was.
    """
    for path in (file.path for group in groups for file in group):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "there is a folder of this name", str(path))
    with _alone_in(groups[0][0].path.parent):
        earlier = _replace(groups)
    for path in earlier:
        try:
            path.unlink()
        except OSError as error:
            logger.warning("the new files are in place, and an earlier one could not be removed: %s", error)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits for other processes that are in such a block with the same folder."""
    with ExitStack() as stack:
        # Some file systems have no locks for folders, and some folders may be written and not read.
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _replace(groups: Sequence[Sequence[NewFile]]) -> list[Path]:
    """Does all the renames, or none; returns where the earlier files are."""
    suffix = temporary_suffix("old")
    earlier: list[Path] = []
    moves: list[tuple[Path, Path]] = []
    try:
        for group in groups:
            for file in reversed(group):
                if os.path.lexists(file.path):
                    earlier.append(Path(f"{file.path}{suffix}"))
                    _move(file.path, earlier[-1], moves)
            for file in group:
                if file.temporary is not None:
                    _move(file.temporary, file.path, moves)
    except BaseException:
        _undo(moves)
        raise
    return earlier


def _move(source: Path, target: Path, moves: list[tuple[Path, Path]]) -> None:
    # Noted first: an interrupt may come between the two lines.
    moves.append((source, target))
    source.rename(target)


def _undo(moves: Sequence[tuple[Path, Path]]) -> None:
    for source, target in reversed(moves):
        if os.path.lexists(source):
            continue
        try:
            target.rename(source)
        except OSError as error:
            logger.error("%s could not be moved back to %s: %s", target, source, error)
