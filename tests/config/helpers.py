"""A complete command line for a tiny run, and what the tests of the config do with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_ds.config import ResolvedRun, collect, resolve
from megatron_ds.errors import Problem

TINY: dict[str, str] = {
    "--num-layers": "2",
    "--hidden-size": "32",
    "--num-attention-heads": "4",
    "--seq-length": "16",
    "--micro-batch-size": "1",
    "--train-iters": "6",
    "--lr": "1e-3",
}


def words(*extra: str, **changes: str | None) -> list[str]:
    """The tiny run's flags with `changes` (None leaves a flag out), then `extra`."""
    flags = dict(TINY)
    for name, value in changes.items():
        flag = "--" + name.replace("_", "-")
        flags.pop(flag, None)
        if value is not None:
            flags[flag] = value
    return [word for pair in flags.items() for word in pair] + list(extra)


def environ(world_size: int = 1, **more: str) -> dict[str, str]:
    """An environment on CPU."""
    return {"WORLD_SIZE": str(world_size), "DS_ACCELERATOR": "cpu", **more}


def write_json(path: Path, content: Mapping[str, Any]) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def resolved(argv: Sequence[str], world_size: int = 1) -> ResolvedRun:
    return resolve(argv, environ(world_size), "pretrain_gpt.py")


def problems(argv: Sequence[str], world_size: int = 1, **more: str) -> list[Problem]:
    return collect(argv, environ(world_size, **more))[1]


def only_problem(argv: Sequence[str], world_size: int = 1, **more: str) -> str:
    """The text of the one problem that there is."""
    found = problems(argv, world_size, **more)
    assert len(found) == 1, [str(problem) for problem in found]
    return str(found[0])
