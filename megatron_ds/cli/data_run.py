"""The run that a data tool is asked about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_ds.config import collect
from megatron_ds.config.blocks import RunConfig
from megatron_ds.errors import ConfigError, Problem
from megatron_ds.training.metrics import METRICS_FILE, read_metrics

RUN_CONFIG = "run_config.json"


def find_run(
    folder: Path | None, words: Sequence[str], environ: Mapping[str, str], world_size: int | None = None
) -> RunConfig:
    """Resolves the run of a folder, of options, or of a folder with options that stand over its own.

    Args:
        folder: what ``--save`` wrote, or None.
        words: the run's options as on its own command line.
        environ: the environment.
        world_size: processes of the run; None where the environment, the folder, or TP x PP says it.

    Returns:
        Its options, checked.

    Raises:
        ConfigError: the folder is none of a run, or an option is wrong.
        SystemExit: after ``--help``.
    """
    options = [*(_options_of(folder) if folder else []), *words]
    size = str(world_size) if world_size is not None else environ.get("WORLD_SIZE") or _saved_world_size(folder)
    if size is None:
        # As few processes as the model needs: most runs give their global batch size.
        resolved, problems = collect(options, {**environ, "WORLD_SIZE": "1"})
        if resolved is None:
            raise ConfigError(problems)
        parallel = resolved.run.parallel
        size = str(parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)
    resolved, problems = collect(options, {**environ, "WORLD_SIZE": size})
    if resolved is None or problems:
        raise ConfigError(problems)
    return resolved.run


def _options_of(folder: Path) -> list[str]:
    config = folder / RUN_CONFIG
    if not config.is_file():
        raise ConfigError(
            Problem(f"--run {folder} is no folder of a run: it has no {RUN_CONFIG}", advice="give the folder of --save")
        )
    return ["--config", str(config)]


def _saved_world_size(folder: Path | None) -> str | None:
    if folder is None:
        return None
    try:
        size = json.loads((folder / RUN_CONFIG).read_text(encoding="utf-8")).get("world_size")
    except (OSError, ValueError, AttributeError):
        return None
    return str(size) if isinstance(size, int) else None


def consumed_before(step: int, global_batch_size: int, folder: Path | None) -> tuple[int, bool]:
    """Samples that a run consumed before a step.

    Args:
        step: number of the step, from 1.
        global_batch_size: samples per step.
        folder: of the run; its metrics.jsonl is read when there is one, as the batch size may have changed on the way.

    Returns:
        The samples, and whether the metrics say so.
    """
    path = folder / METRICS_FILE if folder else None
    for record in read_metrics(path) if path and path.is_file() else []:
        if record["step"] == step and isinstance(record.get("consumed_samples"), int):
            return record["consumed_samples"] - global_batch_size, True
    return (step - 1) * global_batch_size, False
