"""Locks that a compile leaves when it is killed: later runs wait on them for ever, and say nothing.

PyTorch compiles DeepSpeed's parts in a folder for each, and keeps other processes out with a file that is removed at
the end (`torch.utils.file_baton`). The process that made the file has it open all the while.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from megatron_ds.errors import Problem

_PROCESSES = Path("/proc")


def left_locks(parts: list[str], environ: Mapping[str, str]) -> Iterator[Problem]:
    """The locks that no process of this machine holds. Looks at nothing where there is no ``/proc``.

    Args:
        parts: names of what DeepSpeed will compile, for instance ``cpu_adam``.
        environ: the environment.
    """
    for part in parts:
        lock = extensions_folder(environ) / part / "lock"
        # A compile may end while its holder is looked for: the lock is gone then.
        if lock.exists() and _can_look_for_holder(lock) and not _is_open(lock) and lock.exists():
            yield Problem(
                f"a compile of DeepSpeed's {part} was killed and left {lock}: this run would wait for it for ever",
                advice="remove that file, unless another machine that shares the folder compiles there now",
            )


def extensions_folder(environ: Mapping[str, str]) -> Path:
    """Where PyTorch compiles extensions to, as `torch.utils.cpp_extension` decides it, found without importing torch.

    Args:
        environ: the environment.
    """
    if "TORCH_EXTENSIONS_DIR" in environ:
        return Path(environ["TORCH_EXTENSIONS_DIR"])
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    return cache.resolve() / "torch_extensions" / f"{python}_{_accelerator()}"


def _accelerator() -> str:
    """``rocm62``, ``cu130`` or ``cpu``, of the PyTorch that is installed."""
    spec = importlib.util.find_spec("torch")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    text = "".join((Path(place) / "version.py").read_text() for place in places)
    for name, prefix in (("hip", "rocm"), ("cuda", "cu")):
        found = re.search(rf"^{name}\b.*=\s*['\"](.+)['\"]", text, re.MULTILINE)
        if found is not None:
            return prefix + found[1].replace(".", "")
    return "cpu"


def _can_look_for_holder(lock: Path) -> bool:
    """Whether the open files of the lock's owner can be seen."""
    return _PROCESSES.is_dir() and os.geteuid() in (0, lock.stat().st_uid)


def _is_open(path: Path) -> bool:
    """Whether a process that this user may look into has a file open."""
    for descriptors in _PROCESSES.glob("[0-9]*/fd"):
        with suppress(OSError):  # the process has ended, or is another user's
            for descriptor in descriptors.iterdir():
                with suppress(OSError):
                    if descriptor.samefile(path):
                        return True
    return False
