"""The text of ``--help``, generated from the options."""

from __future__ import annotations

import shutil
import textwrap

from megatron_ds.config.catalog import Option, all_options
from megatron_ds.config.flags import SWITCHES, TEXT_FLAGS
from megatron_ds.utils.text import value_text


def help_text(program: str) -> str:
    """The text of ``--help``: every flag, grouped by block.

    Args:
        program: name of the program.

    Returns:
        Text for a terminal, as wide as the terminal allows.
    """
    width = min(shutil.get_terminal_size().columns, 120)
    parts = [f"usage: {program} [--deepspeed_config FILE] [--config FILE] [options]\n"]
    parts += ["general options"] + [_help_entry(f"{flag} VALUE", text, width) for flag, text in TEXT_FLAGS.items()]
    parts += [_help_entry(flag, text, width) for flag, text in SWITCHES.items()]
    block = ""
    for option in all_options().values():
        if option.block != block:
            block = option.block
            parts.append(f"\n{block} options (JSON: megatron_ds.{block}.…)")
        parts.append(_help_entry(_usage(option), option.help + _default_note(option), width))
    return "\n".join(parts)


def _usage(option: Option) -> str:
    values = {"bool": "", "list": " VALUE …", "int": " N", "float": " X", "str": " TEXT"}
    value = values[option.kind]
    if option.choices:
        value = " {" + ",".join(str(choice) for choice in option.choices) + "}"
    return ", ".join((", ".join((option.flag, *option.aliases)) + value, *option.switches))


def _default_note(option: Option) -> str:
    if option.required:
        return " (required)"
    return "" if option.default in (None, False, []) else f" (default: {value_text(option.default)})"


def _help_entry(usage: str, text: str, width: int) -> str:
    return f"  {usage}\n" + textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
