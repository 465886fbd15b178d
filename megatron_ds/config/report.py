"""What a resolved run looks like: on the terminal (--print-config), and as files beside its checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.catalog import all_options
from megatron_ds.config.derived import derived_values
from megatron_ds.config.resolved import Draft, ResolvedRun
from megatron_ds.config.settings import Given
from megatron_ds.utils.text import counted

RUN_FILE = "run_config.json"
DEEPSPEED_FILE = "deepspeed_config.json"


def describe(resolved: ResolvedRun) -> str:
    """Every value with its origin, and the config that DeepSpeed gets: the text of ``--print-config``.

    Args:
        resolved: the run.

    Returns:
        Text of many lines.
    """
    run = resolved.run
    given = {
        option.path: Given(getattr(getattr(run, option.block), option.name), resolved.origins[option.path])
        for option in all_options().values()
    }
    lines = [*_table({**given, **derived_values(run)}), "", *_sizes(run), *resolved.notes]
    return "\n".join([*lines, "", "DeepSpeed gets", _to_json(resolved.deepspeed)])


def describe_draft(draft: Draft) -> str:
    """The text of ``--print-config`` for a run that has problems: what was given, without what follows from it.

    Args:
        draft: what is known of the run.

    Returns:
        Text of many lines.
    """
    return "\n".join([*_table(draft.values), "", *draft.notes])


def _table(values: Mapping[str, Given]) -> list[str]:
    rows = [(path, json.dumps(given.value, ensure_ascii=False), given.origin) for path, given in values.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{path:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {origin}" for path, value, origin in rows]


def _sizes(run: RunConfig) -> Iterator[str]:
    """Products of several options."""
    parallel = run.parallel
    tp_size = parallel.tensor_model_parallel_size
    yield f"processes: {run.world_size} = TP {tp_size} x PP {parallel.pipeline_model_parallel_size} x DP {run.dp_size}"
    yield (
        f"batch: {counted(run.global_batch_size, 'sample')} = micro {run.training.micro_batch_size} x "
        f"{run.num_micro_batches} accumulated x DP {run.dp_size}"
    )
    if run.model.vocab_size is not None:
        yield f"vocabulary: {counted(run.model.vocab_size, 'id')}, padded to {run.model.padded_vocab_size(tp_size)}"


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
