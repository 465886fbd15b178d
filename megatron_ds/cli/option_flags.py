"""Flags of tools that mean what the same flags of a run mean: name, aliases, older values, range and help text."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from megatron_ds.config.catalog import Option, all_options, convert_text
from megatron_ds.errors import ConfigError, Problem

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


def add_option(parser: argparse._ActionsContainer, path: str) -> None:
    """Adds an option of a run to a tool's parser; None when it is not given.

    Args:
        parser: the parser, or a group of it.
        path: of the option, such as ``data.tokenizer_type``.
    """
    option = all_options()[path]
    parser.add_argument(
        option.flag, *option.aliases, dest=option.name, type=_converter(option), help=option.help.replace("%", "%%")
    )


def _converter(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return convert_text(option, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{option.name} is {error}, not {text[:40]!r}") from None

    return convert


class ToolParser(argparse.ArgumentParser):
    """A parser for tools that a launcher may start: one process tells how they are used, and what is wrong.

    What is wrong is a `ConfigError`, which is told once for all processes.
    """

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Prints the help in the first process only."""
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage and ending the process."""
        raise ConfigError(Problem(message, advice=f"{self.prog} --help tells the options"))
