"""Looks whether this machine has what offload needs: a folder on a disk, tools to compile DeepSpeed's code, no lock."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_ds.cli.compile_locks import left_locks
from megatron_ds.errors import Problem, Source

_BLOCKS = ("offload_optimizer", "offload_param")
_ASYNC_IO = "#include <libaio.h>\nint main() { io_context_t context = 0; return io_setup(1, &context); }\n"
_COMPILER_SECONDS = 60


def machine_problems(deepspeed_config: Mapping[str, Any], environ: Mapping[str, str]) -> list[Problem]:
    """What this machine lacks of what the config's offload needs.

    DeepSpeed compiles its CPU Adam, and its reader of disks, when they are first used, and says so long after the
    start if that can't be.

    Args:
        deepspeed_config: what DeepSpeed gets.
        environ: the environment.
    """
    zero = deepspeed_config.get("zero_optimization", {})
    blocks = {name: zero.get(name, {}) for name in _BLOCKS}
    disks = {name: block for name, block in blocks.items() if block.get("device") == "nvme"}
    problems = [problem for name, block in disks.items() for problem in _folder_problems(name, block["nvme_path"])]
    adam = blocks["offload_optimizer"].get("device", "none") != "none" and not _is_built("adam", "cpu_adam")
    async_io = bool(disks) and not _is_built("aio", "async_io")
    if adam or async_io:
        what = " and ".join(["its CPU Adam"] * adam + ["async_io, which reads and writes disks"] * async_io)
        compiler = environ.get("CXX") or "c++"
        problems += _tool_problems(compiler, what)
        if async_io and not problems:
            problems += _libaio_problems(compiler, environ)
        problems += left_locks(["cpu_adam"] * adam + ["async_io"] * async_io, environ)
    return problems


def _folder_problems(name: str, path: str) -> Iterator[Problem]:
    source = Source("nvme_path", path, f"the DeepSpeed JSON: zero_optimization.{name}.nvme_path")
    if not Path(path).is_dir():
        yield Problem(f"{name}: there is no folder {path}", (source,), "make it on a local disk of every machine")
    elif not os.access(path, os.W_OK | os.X_OK):
        yield Problem(f"{name}: {path} can't be written to", (source,), "give a folder that this user may write to")


def _is_built(folder: str, name: str) -> bool:
    """Whether DeepSpeed was installed with this part compiled (`DS_BUILD_…`). Found without importing DeepSpeed."""
    spec = importlib.util.find_spec("deepspeed")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    return any(any((Path(place) / "ops" / folder).glob(f"{name}_op*.so")) for place in places)


def _tool_problems(compiler: str, what: str) -> list[Problem]:
    missing = [tool for tool in (shlex.split(compiler)[0], "ninja") if shutil.which(tool) is None]
    if not missing:
        return []
    return [
        Problem(
            f"offload has DeepSpeed compile {what}, and there is no {' and no '.join(missing)} here",
            advice="install a C++ compiler (CXX names it) and ninja (pip install ninja), or leave offload out",
        )
    ]


def _libaio_problems(compiler: str, environ: Mapping[str, str]) -> list[Problem]:
    """Compiles a few lines as DeepSpeed does to find out."""
    flags = [word for name in ("CFLAGS", "LDFLAGS") for word in shlex.split(environ.get(name, ""))]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "async_io.cpp"
        source.write_text(_ASYNC_IO)
        command = [*shlex.split(compiler), str(source), *flags, "-laio", "-o", str(source.with_suffix(""))]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_COMPILER_SECONDS, env=dict(environ)
            )
        except subprocess.TimeoutExpired:
            return []
    if done.returncode == 0:
        return []
    error = next((line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line), "")
    return [
        Problem(
            f"offload to disks needs libaio, which can't be compiled against here: {error.strip()}",
            advice="install its headers (Debian, Ubuntu: libaio-dev; Fedora, RHEL: libaio-devel; CFLAGS and LDFLAGS "
            'say where they are), or use "device": "cpu"',
        )
    ]
