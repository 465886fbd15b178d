"""From a run's task options to its encoded examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_ds.config.blocks import GLUE_TASKS as GLUE_NAMES
from megatron_ds.errors import ConfigError, DataError, Problem
from megatron_ds.tasks.glue.definitions import GLUE_TASKS
from megatron_ds.tasks.metrics import check_metrics_installed
from megatron_ds.tasks.of_pairs import GlueFinetuning, RaceFinetuning
from megatron_ds.tasks.sft.task import SftFinetuning
from megatron_ds.tasks.task import Task, TaskData, TaskSet
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.tokenizers.chat_template import load_chat_template

if TYPE_CHECKING:
    from megatron_ds.config.blocks import RunConfig

# What each task decides of the model.
MODEL_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    **{
        name: {"model_type": "bert", "output_head": "classification", "num_classes": GLUE_TASKS[name].num_classes}
        for name in GLUE_NAMES
    },
    "RACE": {"model_type": "bert", "output_head": "multiple_choice"},
    "SFT": {"model_type": "gpt", "output_head": "lm"},
}


def build_task(run: RunConfig, tokenizer: Tokenizer) -> Task:
    """The task of a run.

    Args:
        run: one with a task.
        tokenizer: its tokenizer.

    Raises:
        ConfigError: the tokenizer lacks what the task needs, or a package for its metrics is missing.
    """
    name, seq_length = run.task.task, run.model.seq_length
    assert name is not None, "a run with a task"
    if name == "SFT":
        name_or_path = run.data.tokenizer_name_or_path if run.data.tokenizer_type == "HFTokenizer" else None
        template = None if name_or_path is None else load_chat_template(name_or_path)
        pad_id = tokenizer.eod_id or 0
        return SftFinetuning(tokenizer, template, seq_length, run.task.packing, pad_id)
    problems = check_metrics_installed()
    if problems:
        raise ConfigError(problems)
    if name == "RACE":
        return RaceFinetuning(tokenizer, seq_length)
    return GlueFinetuning(GLUE_TASKS[name], tokenizer, seq_length)


def read_task_data(run: RunConfig, tokenizer: Tokenizer) -> TaskData:
    """Reads and encodes all examples of a run.

    Args:
        run: one with a task.
        tokenizer: its tokenizer.

    Raises:
        ConfigError: the tokenizer lacks what the task needs, or a package for its metrics is missing.
        DataError: files are missing or broken: a problem for each.
    """
    task, options = build_task(run, tokenizer), run.task
    problems: list[Problem] = []

    def read(paths: Sequence[str], *, need_labels: bool) -> TaskSet | None:
        try:
            return task.read([Path(path) for path in paths], need_labels=need_labels)
        except DataError as error:
            problems.extend(error.problems)
            return None

    train = read(options.train_data, need_labels=True)
    valid = [read([path], need_labels=True) for path in options.valid_data]
    test = [read([path], need_labels=False) for path in options.test_data]
    if problems:
        raise DataError(problems)
    assert train is not None, "without problems everything was read"
    return TaskData(task, train, *(named_apart(each for each in sets if each is not None) for sets in (valid, test)))


def named_apart(sets: Iterable[TaskSet]) -> tuple[TaskSet, ...]:
    """The sets under names that differ: two files of one name get numbers."""
    named: list[TaskSet] = []
    for each in sets:
        taken, name, number = {one.name for one in named}, each.name, 2
        while name in taken:
            name, number = f"{each.name}_{number}", number + 1
        named.append(each.under(name))
    return tuple(named)
