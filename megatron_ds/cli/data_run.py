"""The run that a data tool is asked about."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.cli.preflight import check_run_data
from megatron_ds.config import collect
from megatron_ds.config.blocks import RunConfig
from megatron_ds.errors import ConfigError, Problem
from megatron_ds.training.starts import read_starts, start_of_step

RUN_CONFIG = "run_config.json"


@dataclass(frozen=True)
class ToolRun:
    """A run that is looked at.

    Attributes:
        run: its options, checked, its tokenizer and data too.
        consumed_samples: samples consumed before the step that was asked for; None when no step was.
        is_known: whether the run's folder says so; otherwise all steps before are taken to have had this batch size.
    """

    run: RunConfig
    consumed_samples: int | None = None
    is_known: bool = False


def find_run(
    folder: Path | None,
    words: Sequence[str],
    environ: Mapping[str, str],
    world_size: int | None = None,
    step: int | None = None,
) -> ToolRun:
    """Resolves the run of a folder, of options, or of a folder with options that stand over its own.

    Args:
        folder: what ``--save`` wrote, or None.
        words: the run's options as on its own command line.
        environ: the environment.
        world_size: processes of the run; None where the environment, the folder, or TP x PP says it.
        step: the step that is looked at: the run may have been resumed with other options since.

    Raises:
        ConfigError: the folder is none of a run, or an option, the tokenizer or the data is wrong.
        SystemExit: after ``--help``.
    """
    start = start_of_step(read_starts(folder), step) if folder and step else None
    with tempfile.TemporaryDirectory() as temporary:
        if start is not None:
            config = Path(temporary) / RUN_CONFIG
            config.write_text(json.dumps(start.options), encoding="utf-8")
        elif folder:
            config = _config_of(folder)
        options = [*(["--config", str(config)] if folder else []), *words]
        size = str(world_size) if world_size is not None else environ.get("WORLD_SIZE")
        size = size or (_saved_world_size(config) if folder else None) or _fewest_processes(options, environ)
        resolved, problems = collect(options, {**environ, "WORLD_SIZE": size})
    if resolved is None or problems:
        raise ConfigError(problems)
    resolved, tokenizer_problems, data_problems = check_run_data(resolved)
    if tokenizer_problems or data_problems:
        raise ConfigError([*tokenizer_problems, *data_problems])
    run = resolved.run
    if step is None:
        return ToolRun(run)
    if not 1 <= step <= run.training.train_iters:
        raise ConfigError(Problem(f"--step {step} is not one of the run's {run.training.train_iters} steps"))
    if start is not None and start.global_batch_size == run.global_batch_size:
        return ToolRun(run, start.consumed_before(step), True)
    return ToolRun(run, (step - 1) * run.global_batch_size, False)


def _fewest_processes(options: Sequence[str], environ: Mapping[str, str]) -> str:
    """As few as the model needs: most runs give their global batch size."""
    resolved, problems = collect(options, {**environ, "WORLD_SIZE": "1"})
    if resolved is None:
        raise ConfigError(problems)
    parallel = resolved.run.parallel
    return str(parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)


def _config_of(folder: Path) -> Path:
    config = folder / RUN_CONFIG
    if not config.is_file():
        raise ConfigError(
            Problem(f"--run {folder} is no folder of a run: it has no {RUN_CONFIG}", advice="give the folder of --save")
        )
    return config


def _saved_world_size(config: Path) -> str | None:
    try:
        size = json.loads(config.read_text(encoding="utf-8")).get("world_size")
    except (OSError, ValueError, AttributeError):
        return None
    return str(size) if isinstance(size, int) else None
