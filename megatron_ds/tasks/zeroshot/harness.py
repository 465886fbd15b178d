"""Tasks of lm-evaluation-harness: rank 0 runs the harness, and all ranks the model."""

from __future__ import annotations

import difflib
import logging
from traceback import walk_tb
from typing import Any

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import ConfigError, DataError, MegatronDsError, Problem
from megatron_ds.tasks.zeroshot.job import HarnessTask
from megatron_ds.tasks.zeroshot.results import TaskResult
from megatron_ds.tasks.zeroshot.shared_model import SharedModel


def task_manager(task: HarnessTask) -> Any:
    """The harness's list of tasks, with one's own among them. For rank 0, before a model is loaded.

    Raises:
        ConfigError: there is no task of a name.
    """
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    if task.include_path is not None:
        # Reading the harness's own thousands of files takes many seconds; a task of one's own refers to none of them.
        manager = TaskManager(include_path=str(task.include_path), include_defaults=False)
        if set(task.names) <= set(manager.all_subtasks):
            return manager
    manager = TaskManager(include_path=None if task.include_path is None else str(task.include_path))
    problems = []
    for name in task.names:
        if not manager.match_tasks([name]):
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            advice = f"did you mean {' or '.join(near)}?" if near else "give --include-path for tasks of your own"
            problems.append(Problem(f"lm-evaluation-harness has no task {name!r}", advice=advice))
    if problems:
        raise ConfigError(problems)
    return manager


def evaluate_harness(model: SharedModel, config: ModelConfig, task: HarnessTask, manager: Any) -> list[TaskResult]:
    """The numbers of each task and group. For rank 0, while the other ranks serve.

    Args:
        model: all ranks of it.
        config: its architecture.
        task: the tasks.
        manager: what `task_manager` gave.

    Raises:
        ConfigError: a task asks for what the model can't do.
        DataError: a task's data can't be read.
    """
    from lm_eval import simple_evaluate

    from megatron_ds.tasks.zeroshot.harness_model import HarnessModel

    try:
        found = simple_evaluate(
            HarnessModel(model, config, task),
            tasks=manager.match_tasks(list(task.names)),
            num_fewshot=task.num_fewshot,
            limit=task.limit,
            log_samples=False,
            task_manager=manager,
        )
    except MegatronDsError:
        raise
    except Exception as error:
        # A task's templates and data can fail in any way; what our model fails of is told as it is.
        if _is_below(HarnessModel.__module__, error) and not isinstance(error, (OSError, ValueError)):
            raise
        message = f"lm-evaluation-harness can't run {', '.join(task.names)}: {type(error).__name__}: {error}"
        raise DataError(
            Problem(message, advice="check the task and its data, and that the network can be reached")
        ) from error
    counts = found.get("n-samples", {})
    return [
        TaskResult(name, _numbers(values), counts.get(name, {}).get("effective"))
        for name, values in found["results"].items()
        if _numbers(values)
    ]


def _is_below(module: str, error: Exception) -> bool:
    """Whether an error was raised by a module, or by what it called."""
    return any(frame.f_globals.get("__name__") == module for frame, _ in walk_tb(error.__traceback__))


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """The numbers of a task. A filter is named only where the metric is that of one: ``exact_match,strict-match``."""
    return {
        key.removesuffix(",none"): float(value)
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key not in ("sample_len", "sample_count")
    }
