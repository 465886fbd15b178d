"""Rules about saving and loading."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem


def saves_have_a_folder(settings: Settings) -> Iterator[Problem]:
    """An interval of saves needs a folder."""
    if settings.value("checkpoint.save_interval") is not None and settings.value("checkpoint.save") is None:
        yield Problem(
            "save_interval is given and save is not: there is no folder to save to",
            settings.sources("checkpoint.save_interval"),
            "give --save FOLDER, or leave the interval out",
        )


def fresh_start_has_a_folder(settings: Settings) -> Iterator[Problem]:
    """--allow-fresh-start is about --load."""
    if settings.value("checkpoint.allow_fresh_start") and settings.value("checkpoint.load") is None:
        yield Problem(
            "allow_fresh_start is given and load is not: a run without --load always starts from step 0",
            settings.sources("checkpoint.allow_fresh_start"),
            "give --load FOLDER, or leave --allow-fresh-start out",
        )
