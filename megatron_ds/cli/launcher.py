"""What the launcher got wrong, found by the processes that it started: DeepSpeed's says it in a warning at most."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from megatron_ds.errors import Problem, Source

# What a process must know about the others. DeepSpeed's launcher and torchrun set all of it.
PLACE = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

# How many processes there are, in the words of launchers that leave WORLD_SIZE unset.
_OTHER_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "mpirun of Open MPI",
    "PMI_SIZE": "an MPI launcher",
    "SLURM_STEP_NUM_TASKS": "srun",
}


def launch_problems(environ: Mapping[str, str]) -> list[Problem]:
    """What is wrong with how this process was started.

    Args:
        environ: the environment.

    Returns:
        Missing variables, and a hostfile that DeepSpeed's launcher did not find.
    """
    return [*_missing_variables(environ), *_wrong_numbers(environ), *_missing_hostfile(environ)]


def _missing_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    processes = environ.get("WORLD_SIZE", "1")
    missing = [name for name in PLACE if name not in environ]
    if processes != "1" and missing:
        yield Problem(
            f"WORLD_SIZE is {processes}, and the environment lacks {', '.join(missing)}: a process must know its place",
            (Source("WORLD_SIZE", processes, "the environment"),),
            "start with deepspeed or torchrun, or set RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process",
        )
    if "WORLD_SIZE" in environ:
        return
    for name, launcher in _OTHER_LAUNCHERS.items():
        count = environ.get(name, "1")
        if count != "1":
            yield Problem(
                f"{launcher} started {count} processes, and WORLD_SIZE is not set: each would train a model alone",
                (Source(name, count, "the environment"),),
                "set WORLD_SIZE, RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process (docs/launching.md), or "
                "start with deepspeed or torchrun",
            )


def _wrong_numbers(environ: Mapping[str, str]) -> Iterator[Problem]:
    processes = environ.get("WORLD_SIZE", "1")
    limits = {"RANK": processes, "LOCAL_RANK": processes, "MASTER_PORT": "65536"}
    for name, limit in limits.items():
        value = environ.get(name, "0")
        if not _is_number(value) or (_is_number(limit) and int(value) >= max(1, int(limit))):
            yield Problem(
                f"{name} is a whole number below {limit}",
                (Source(name, value, "the environment"), Source("WORLD_SIZE", processes, "the environment")),
                "start with deepspeed or torchrun, which set it right",
            )


def _is_number(text: str) -> bool:
    # Python refuses to read numbers of thousands of digits.
    return text.isdecimal() and len(text) < 20


def _missing_hostfile(environ: Mapping[str, str]) -> Iterator[Problem]:
    """DeepSpeed goes on with one host when its hostfile is missing. Its command line still shows what was meant."""
    if "CROSS_SIZE" not in environ:  # set by DeepSpeed's launcher only
        return
    for pid in _ancestors():
        hostfile = _hostfile_of(pid)
        if hostfile is not None and not hostfile.is_file():
            yield Problem(
                f"the hostfile {hostfile} does not exist, and DeepSpeed's launcher went on with this host alone",
                (Source("hostfile", str(hostfile), "deepspeed --hostfile"),),
                "check the path, or leave --hostfile out to run on this host",
            )


def _hostfile_of(pid: int) -> Path | None:
    """The hostfile on the command line of a process, if that is DeepSpeed's launcher and was given one."""
    with suppress(OSError):
        process = Path(f"/proc/{pid}")
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        # "python /usr/bin/deepspeed …" or "python -m deepspeed.launcher.runner …"
        if not any(Path(word).name in ("deepspeed", "ds", "deepspeed.launcher.runner") for word in words[:4]):
            return None
        for word, following in zip(words, [*words[1:], ""], strict=True):
            flag, has_value, value = word.partition("=")
            if flag in ("--hostfile", "-H"):
                return (process / "cwd").readlink() / (value if has_value else following)
    return None


def _ancestors(generations: int = 3) -> Iterator[int]:
    """The parent of this process, its parent and so on; nothing where there is no ``/proc``."""
    pid = os.getppid()
    with suppress(OSError, IndexError):
        for _ in range(generations):
            yield pid
            # The name in brackets may hold spaces: fields are counted from its end.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
