"""Flags of tools that mean what the same flags of a run mean: name, aliases, older values, range and help text."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from megatron_ds.config.catalog import Option, all_options, convert_text
from megatron_ds.errors import ConfigError, Problem


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
    """A parser for tools that a launcher may start: what is wrong is a `ConfigError`, told once for all processes."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage and ending the process."""
        raise ConfigError(Problem(message, advice=f"{self.prog} --help tells the options"))
