"""Files of a checkpoint that one rank is to write, and what has become of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from megatron_ds.checkpoint.hashed_file import FileRecord, sync_folder
from megatron_ds.utils.logging import logger


@dataclass(frozen=True)
class WrittenFiles:
    """What one rank has written of a checkpoint.

    Attributes:
        rank: the rank.
        files: its files by their path inside of the checkpoint's folder; all are on disk.
        failure: the path that could not be written, and why; empty when all went well.
    """

    rank: int
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    failure: str = ""


@dataclass
class PendingFiles:
    """The files of one rank in one checkpoint, of which some may not be written yet.

    Attributes:
        folder: of the checkpoint.
        rank: this rank.
    """

    folder: Path
    rank: int
    _files: dict[str, FileRecord] = field(default_factory=dict)
    _tasks: list[tuple[Path, Callable[[], FileRecord]]] = field(default_factory=list)
    _failure: str = ""

    def add(self, path: Path, write: Callable[[], FileRecord]) -> None:
        """Notes a file that `write` writes when its turn comes."""
        self._tasks.append((path, write))

    def fail(self, error: Exception, path: Path) -> None:
        """Notes the first failure. Nothing is written after it."""
        if self._failure:
            return
        if isinstance(error, OSError):
            self._failure = describe_failure(error, path)
        else:
            logger.error("%s", "".join(traceback.format_exception(error)))
            self._failure = f"{path}: {type(error).__name__}: {error}"

    def write(self) -> WrittenFiles:
        """Writes what is not written yet. Never raises: the ranks have to tell each other of a failure."""
        while self._tasks and not self._failure:
            path, write = self._tasks.pop(0)
            try:
                self._files[path.relative_to(self.folder).as_posix()] = write()
            except Exception as error:  # whatever a full disk or the serialization of an object comes to
                self.fail(error, path)
        self._tasks.clear()
        if self._files and not self._failure:
            try:
                sync_folder(self.folder)
            except OSError as error:
                self.fail(error, self.folder)
        return WrittenFiles(self.rank, dict(self._files), self._failure)


def describe_failure(error: OSError, path: Path) -> str:
    """The path that an error is about, and its reason in words."""
    return f"{error.filename or path}: {error.strerror or error}"
