"""``megatron-ds evaluate`` on the checkpoint of a finetuned BERT: its task's examples."""

from __future__ import annotations

import argparse

from megatron_ds.cli.evaluate_validation import saved_run
from megatron_ds.cli.inference import NamedCheckpoint, find_tokenizer
from megatron_ds.errors import CheckpointError, DataError, Problem, Source
from megatron_ds.tasks.data import MODEL_OPTIONS, build_task, named_apart
from megatron_ds.tasks.task import TaskSet
from megatron_ds.tasks.zeroshot.job import FinetunedTask


def finetuned_task(arguments: argparse.Namespace, checkpoint: NamedCheckpoint, name: str) -> FinetunedTask:
    """The task's examples in each file, or folder, of ``--valid-data``.

    Args:
        arguments: as `megatron_ds.cli.evaluate_options` parses them.
        checkpoint: the checkpoint.
        name: of the task, as finetune.py has it.

    Raises:
        MegatronDsError: the checkpoint is of another task, a file is missing or broken, or has no labels.
    """
    _refuse_other_head(checkpoint, name)
    tokenizer, _ = find_tokenizer(arguments, checkpoint)
    task = build_task(saved_run(checkpoint, checkpoint.data, task=name), tokenizer)
    sets: list[TaskSet] = []
    problems: list[Problem] = []
    for path in arguments.valid_data:
        try:
            sets.append(task.read([path], need_labels=True))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return FinetunedTask(task, named_apart(sets))


def _refuse_other_head(checkpoint: NamedCheckpoint, name: str) -> None:
    model, wanted = checkpoint.model, MODEL_OPTIONS[name]
    other = {option: value for option, value in wanted.items() if getattr(model, option) != value}
    trained = checkpoint.manifest.options.get("task", {}).get("task")
    if not other and trained in (None, name):
        return
    sources = tuple(Source(option, str(getattr(model, option)), checkpoint.label) for option in other)
    needs = ", ".join(f"{option} {value}" for option, value in other.items())
    message = f"{checkpoint.label} is not a model of {name}: " + (
        f"that has {needs}" if other else f"it is of {trained}"
    )
    raise CheckpointError(Problem(message, sources, f"finetune a model with finetune.py --task {name}, or load one"))
