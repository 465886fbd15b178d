"""Rules about saving and loading."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem

_SAVE = "checkpoint.save"


def saves_have_a_folder(settings: Settings) -> Iterator[Problem]:
    """What says when and how to save needs a folder."""
    if settings.value(_SAVE) is not None:
        return
    for name in ("save_interval", "async_save", "keep_last"):
        if settings.value(f"checkpoint.{name}"):
            yield Problem(
                f"{name} is given and save is not: there is no folder to save to",
                settings.sources(f"checkpoint.{name}"),
                f"give --save FOLDER, or leave {name} out",
            )


def kept_multiples_are_exceptions(settings: Settings) -> Iterator[Problem]:
    """--keep-every says what --keep-last does not remove."""
    if settings.value("checkpoint.keep_every") is not None and settings.value("checkpoint.keep_last") is None:
        yield Problem(
            "keep_every is given and keep_last is not: without keep_last every checkpoint is kept",
            settings.sources("checkpoint.keep_every"),
            "give --keep-last N as well, or leave keep_every out",
        )


def one_schedule_counts(settings: Settings) -> Iterator[Problem]:
    """The run's schedule or the checkpoint's: not both."""
    paths = ("checkpoint.override_lr_scheduler", "checkpoint.use_checkpoint_lr_scheduler")
    if all(settings.value(path) for path in paths):
        yield Problem(
            "override_lr_scheduler and use_checkpoint_lr_scheduler are both given",
            settings.sources(*paths),
            "keep --override-lr-scheduler for this run's schedule, --use-checkpoint-lr-scheduler for the checkpoint's",
        )


def loading_has_a_folder(settings: Settings) -> Iterator[Problem]:
    """What says which checkpoint is meant, or what it is for, needs one."""
    if settings.value("checkpoint.load") is not None:
        return
    for name in ("load_step", "finetune"):
        if settings.value(f"checkpoint.{name}") not in (None, False):
            yield Problem(
                f"{name} is given and load is not: there is no checkpoint to begin with",
                settings.sources(f"checkpoint.{name}"),
                f"give --load FOLDER, or leave --{name.replace('_', '-')} out",
            )


def fresh_start_has_a_folder(settings: Settings) -> Iterator[Problem]:
    """--allow-fresh-start is about --load."""
    if settings.value("checkpoint.allow_fresh_start") and settings.value("checkpoint.load") is None:
        yield Problem(
            "allow_fresh_start is given and load is not: a run without --load always starts from step 0",
            settings.sources("checkpoint.allow_fresh_start"),
            "give --load FOLDER, or leave --allow-fresh-start out",
        )
