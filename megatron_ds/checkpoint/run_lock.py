"""One run writes into a folder at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.utils.logging import logger

LOCK_NAME = "run.lock"

_HELD = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def run_lock(folder: Path, origin: str) -> Iterator[None]:
    """Keeps other runs out of a folder. One process of a run holds it.

    The operating system ends the lock with the process, however that ends, so nothing has to be cleaned up after a
    crash; network file systems with locks do the same between hosts. What is in the file is for the message only.

    Args:
        folder: of ``--save``; made when it is missing.
        origin: where the option came from.

    Raises:
        ConfigError: another run has the folder; or it can't be made.
    """
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _open_locked(path)
    except OSError as error:
        if error.errno in _HELD and not isinstance(error, PermissionError):
            raise ConfigError(_in_use(path, origin)) from error
        if error.errno not in _NO_LOCKS:
            raise ConfigError(Problem(f"{path} can't be made: {error.strerror}", (_source(path, origin),))) from error
        logger.warning("%s: this file system has no locks: nothing keeps another run out of the folder", folder)
        yield
        return
    try:
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


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
