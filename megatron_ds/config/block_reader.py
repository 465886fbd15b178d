"""The `megatron_ds` block of a JSON: options by block, and the model as a preset, inline, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from megatron_ds.config.catalog import all_options, block_classes, check_text, convert_json
from megatron_ds.config.files import ConfigFile, read_model_preset
from megatron_ds.config.migration import advice_for, renamed
from megatron_ds.config.settings import PRESET_ORIGIN, Given, wrong_option_value, wrong_value
from megatron_ds.config.spelling import did_you_mean
from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.utils.text import quoted


@dataclass
class Block:
    """What a `megatron_ds` block says.

    Attributes:
        options: options by path.
        preset: name of the model preset, if the block names one.
        problems: what is wrong with the block.
        failed: paths of options whose value is among the problems.
    """

    options: dict[str, Given] = field(default_factory=dict)
    preset: Given | None = None
    problems: list[Problem] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)


def read_block(content: Any, prefix: str) -> Block:
    """Reads a `megatron_ds` block.

    Args:
        content: the block as `json` reads it.
        prefix: how its keys' origin begins, for instance ``my_ds.json: megatron_ds.``.

    Returns:
        What it says, with the problems in it. A null means "not given".
    """
    block = Block()
    if not isinstance(content, dict):
        block.problems.append(Problem(f"{prefix.rstrip('.')} is an object {{…}} with blocks, not {quoted(content)}"))
        return block
    for name, options in content.items():
        if name == "world_size":
            continue  # run_config.json tells it for the reader; the launcher decides it.
        if name not in block_classes():
            block.problems.append(_unknown_block(name, prefix))
        elif name == "model" and isinstance(options, str):
            _read_preset_name(block, options, f"{prefix}model")
        elif not isinstance(options, dict):
            block.problems.append(Problem(f"{prefix}{name} is an object {{…}} with options, not {quoted(options)}"))
        else:
            _read_options(block, name, options, prefix + name)
    return block


def _unknown_block(name: str, prefix: str) -> Problem:
    hint = _hint(name)
    guess = did_you_mean(name, block_classes()) if hint is None else ""
    blocks = "the blocks are " + ", ".join(block_classes())
    return Problem(f"unknown block {prefix}{name}{guess}", advice=hint or blocks)


def _read_options(block: Block, name: str, options: Mapping[str, Any], label: str) -> None:
    for key, value in options.items():
        option = all_options().get(f"{name}.{key}")
        origin = f"{label}.{key}"
        if name == "model" and key == "preset":
            _read_preset_name(block, value, origin)
        elif option is None:
            block.problems.append(_unknown_option(name, key, label))
        elif value is not None:
            try:
                block.options[option.path] = Given(convert_json(option, value), origin)
            except ValueError as error:
                block.failed.add(option.path)
                block.problems.append(wrong_option_value(option, value, origin, error))


def _read_preset_name(block: Block, value: Any, origin: str) -> None:
    try:
        if not isinstance(value, str):
            raise ValueError("the name of a model preset")
        check_text(value)
    except ValueError as error:
        block.problems.append(wrong_value("preset", value, origin, str(error)))
    else:
        block.preset = Given(value, origin)


def _unknown_option(block: str, key: str, label: str) -> Problem:
    hint = _hint(key)
    if hint is None:
        siblings = [option.name for option in all_options().values() if option.block == block]
        guess = did_you_mean(key, siblings)
        return Problem(f"unknown key {label}.{key}{guess}", advice="" if guess else "docs/config.md lists all options")
    return Problem(f"unknown key {label}.{key}", advice=hint)


def _hint(key: str) -> str | None:
    """Where an option stands whose name, flag or name elsewhere is `key`, or what to do instead."""
    flag = "--" + key.replace("_", "-")
    for option in all_options().values():
        if option.name == key:
            return f"its place is {option.json_key}"
        if flag in option.switches:
            return f'in a JSON it is "{option.name}": "{option.switches[flag]}", in megatron_ds.{option.block}'
        if flag in option.aliases or option.name == renamed(key):
            return f'in a JSON it is "{option.name}", in megatron_ds.{option.block}'
    return advice_for(key)


def block_of_config_file(file: ConfigFile) -> tuple[Any, str]:
    """The block in a ``--config`` file, with the beginning of its keys' origin.

    The file is the block itself (as run_config.json is), or an object with a `megatron_ds` key and nothing else.

    Args:
        file: the file.

    Returns:
        The block and its prefix for `read_block`.

    Raises:
        ConfigError: there are DeepSpeed keys beside the block.
    """
    if "megatron_ds" not in file.content:
        return file.content, f"{file.label}: "
    others = [key for key in file.content if key != "megatron_ds"]
    if others:
        raise ConfigError(
            Problem(
                f"--config {file.label} has keys beside megatron_ds: {', '.join(others)}",
                advice="give a file with DeepSpeed's keys by --deepspeed_config",
            )
        )
    return file.content["megatron_ds"], f"{file.label}: megatron_ds."


def read_preset(preset: Given) -> tuple[dict[str, Given], list[Problem], str]:
    """Reads the options of a model preset.

    Args:
        preset: its name and where the name was given.

    Returns:
        Options by path, problems, and a note on the file that was taken (may be empty).
    """
    try:
        file = read_model_preset(preset.value, preset.origin)
    except ConfigError as error:
        return {}, [*error.problems], ""
    block = Block()
    _read_options(block, "model", file.content, "model")
    if block.preset is not None:
        block.problems.append(Problem(f"{file.label}: a model preset can't name another preset"))
    origin = f"{PRESET_ORIGIN}{file.label.removesuffix('.json')}"
    options = {path: Given(given.value, origin) for path, given in block.options.items()}
    problems = [
        replace(
            problem,
            message=f"{file.label}: {problem.message}",
            sources=tuple(_in_file(source, file.label) for source in problem.sources),
        )
        for problem in block.problems
    ]
    return options, problems, file.note


def _in_file(source: Source, label: str) -> Source:
    return Source(source.name, source.value, f"{label}: {source.origin}")
