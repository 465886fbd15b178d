"""What a resolved run looks like: on the terminal (--print-config), and as files beside its checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from megatron_ds.config.catalog import all_options
from megatron_ds.config.resolve import ResolvedRun

RUN_FILE = "run_config.json"
DEEPSPEED_FILE = "deepspeed_config.json"


def describe(resolved: ResolvedRun) -> str:
    """Every value with its origin, and the config that DeepSpeed gets: the text of ``--print-config``.

    Args:
        resolved: the run.

    Returns:
        Text of many lines.
    """
    rows = []
    for option in all_options().values():
        value = getattr(getattr(resolved.run, option.block), option.name)
        rows.append((option.path, json.dumps(value), resolved.origins[option.path]))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{path:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {origin}" for path, value, origin in rows]
    run = resolved.run
    sizes = (
        f"processes: {run.world_size} = TP {run.parallel.tensor_model_parallel_size} x "
        f"PP {run.parallel.pipeline_model_parallel_size} x DP {run.dp_size}"
    )
    return "\n".join([*lines, "", sizes, *resolved.notes, "", "DeepSpeed gets", _to_json(resolved.deepspeed)])


def write_resolved(resolved: ResolvedRun, folder: Path) -> None:
    """Writes ``run_config.json`` and ``deepspeed_config.json`` into `folder`, which is made if need be.

    Each file appears whole or not at all. Both can be given back: ``--deepspeed_config deepspeed_config.json --config
    run_config.json``.

    Args:
        resolved: the run.
        folder: where to write; call it on one rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_atomically(folder / RUN_FILE, _to_json(resolved.run.model_dump()))
    _write_atomically(folder / DEEPSPEED_FILE, _to_json(resolved.deepspeed))


def _to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)


def _write_atomically(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
