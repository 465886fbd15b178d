"""One run writes into a folder at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.utils.logging import logger

LOCK_NAME = "run.lock"

_HELD = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass
class RunLock:
    """The lock of a run's folder.

    Attributes:
        path: of the file.
        origin: where the folder's option came from.
        descriptor: of the locked file; None where the file system has no locks.
    """

    path: Path
    origin: str
    descriptor: int | None

    def renew(self) -> bool:
        """Takes the lock anew where its file is gone: the folder was removed or replaced while the run goes on.

        Returns:
            Whether it was gone.

        Raises:
            ConfigError: another run has the folder by now, or it can't be made.
        """
        if self.descriptor is None or self._is_there():
            return False
        os.close(self.descriptor)
        self.descriptor = None
        self.descriptor = _take(self.path, self.origin)
        return True

    def release(self) -> None:
        """Removes the file, if it is this run's, and ends the lock."""
        if self.descriptor is None:
            return
        if self._is_there():
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def _is_there(self) -> bool:
        assert self.descriptor is not None
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except OSError:
            return False


@contextmanager
def run_lock(folder: Path, origin: str) -> Iterator[RunLock]:
    """Keeps other runs out of a folder. One process of a run holds it.

    The operating system ends the lock with the process, however that ends, so nothing has to be cleaned up after a
    crash; network file systems with locks do the same between hosts. What is in the file is for the message only.

    Args:
        folder: of ``--save``; made when it is missing.
        origin: where the option came from.

    Raises:
        ConfigError: another run has the folder; or it can't be made.
    """
    lock = RunLock(folder / LOCK_NAME, origin, _take(folder / LOCK_NAME, origin))
    try:
        yield lock
    finally:
        lock.release()


def _take(path: Path, origin: str) -> int | None:
    """The descriptor of the locked file, which tells who holds it; None where the file system has no locks."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _open_locked(path)
    except OSError as error:
        if error.errno in _HELD and not isinstance(error, PermissionError):
            raise ConfigError(_in_use(path, origin)) from error
        if error.errno not in _NO_LOCKS:
            raise ConfigError(Problem(f"{path} can't be made: {error.strerror}", (_source(path, origin),))) from error
        logger.warning("%s: this file system has no locks: nothing keeps another run out of the folder", path.parent)
        return None
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    with suppress(OSError):  # a full disk; the lock holds without it
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())
    return descriptor


def _open_locked(path: Path) -> int:
    """The locked file's descriptor.

    Raises:
        BlockingIOError: another process has the lock.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Not flock: children, which may live on for a moment, would hold it too.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in _HELD:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path)) from error
            raise
        os.close(descriptor)  # of a file that its holder removed in between


def _in_use(path: Path, origin: str) -> Problem:
    try:
        holder = json.loads(path.read_text())
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "a process that has only just started"
    return Problem(
        f"another run writes into {path.parent}: {who}",
        (_source(path, origin),),
        "wait for it or end it, or give another folder to --save",
    )


def _source(path: Path, origin: str) -> Source:
    return Source("save", str(path.parent), origin)
