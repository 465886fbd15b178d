"""What a user should know of a run that is right: what filled "auto", and what stands over a preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.catalog import all_options
from megatron_ds.config.deepspeed_reader import DeepSpeedFile
from megatron_ds.config.settings import Given
from megatron_ds.utils.text import value_text


def auto_notes(file: DeepSpeedFile, run: RunConfig, final: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """One line for each "auto" of the DeepSpeed JSON, with the value that filled it.

    Args:
        file: what the DeepSpeed JSON says.
        run: the run.
        final: what DeepSpeed gets.
        origins: where each option's value came from.
    """
    notes = []
    for key, path in file.autos.items():
        if path in origins:
            block, name = path.split(".")
            value = getattr(getattr(run, block), name)
            notes.append(f'{file.label}: "auto" {key} = {value_text(value)} (from {origins[path]})')
        elif key in final:
            notes.append(f'{file.label}: "auto" {key} = {value_text(final[key])} (from {path})')
        else:
            notes.append(f'{file.label}: "auto" {key} is filled from {path}')
    return notes


def preset_notes(
    flag: str | None, preset: Mapping[str, Given], blocks: Mapping[str, Given], flags: Mapping[str, Given]
) -> Iterator[str]:
    """A line on the keys of files that change the model of ``--model-preset``.

    The flag takes the place of the preset that a block names, and keys beside that one still stand over it: they may
    have been meant for the other model.

    Args:
        flag: the value of ``--model-preset``, if it was given.
        preset: what the preset says, by path.
        blocks: what the blocks in files say.
        flags: what flags say, which stand over the blocks.
    """
    changes = []
    for path, given in blocks.items():
        option = all_options()[path]
        meant = preset[path].value if path in preset else option.default
        if option.block == "model" and path not in flags and given.value != meant:
            changes.append(f"{option.name} {value_text(given.value)}, not {value_text(meant)} ({given.origin})")
    if flag is not None and changes:
        yield f"--model-preset {flag}: these keys stand over the preset: {'; '.join(changes)}"
