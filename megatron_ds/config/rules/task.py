"""Rules about finetuning on a task."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.rules.bert import TASK
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem


def task_is_named(settings: Settings) -> Iterator[Problem]:
    """Files of a task, and how often they are gone through, need the task."""
    if settings.value(TASK) is not None:
        return
    for name in ("train_data", "valid_data", "test_data", "epochs", "pretrained_checkpoint"):
        if settings.value(f"task.{name}") not in (None, []):
            yield Problem(
                f"{name} is given and task is not",
                settings.sources(f"task.{name}"),
                f"start finetune.py with --task, or leave --{name.replace('_', '-')} out",
            )
