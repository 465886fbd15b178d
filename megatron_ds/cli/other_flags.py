"""Flags that tools of the forks have and ours have not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from megatron_ds.errors import ConfigError, Problem


def refuse_other_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Refuses the flags of the forks' programs that our tool has not: all at once, each with what to do instead.

    Flags that nobody knows are left to the parser.

    Args:
        parser: the tool's, one of `TOOL_TOPICS`.
        argv: its command line.

    Raises:
        ConfigError: there is such a flag.
    """
    accepted = {name for action in parser._actions for name in action.option_strings}
    flags = [flag for word in argv if (flag := word.partition("=")[0]).startswith("--") and flag not in accepted]
    if not flags:
        return  # Before the import: the config takes a while to load, and tools may do without it.
    from megatron_ds.config.migration import tool_advice

    problems = [
        Problem(f"{flag} is an option of Megatron or its forks that {parser.prog} has not", advice=advice)
        for flag in flags
        if (advice := tool_advice(parser.prog, flag)) is not None
    ]
    if problems:
        raise ConfigError(problems)
