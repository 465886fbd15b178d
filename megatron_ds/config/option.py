"""How an option is declared: once, with its help text, its checks, and its older names beside it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class OptionBlock(BaseModel):
    """Base of the blocks of a run's configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def option(default: Any, help: str, *, aliases: tuple[str, ...] = (), choices: tuple[str, ...] = (), **checks: Any) -> Any:
    """Declares one option of a block.

    The flag is the field's name in Megatron's spelling (``num_layers`` → ``--num-layers``).

    Args:
        default: the value when nobody gives one; None means "derived" or "off", as the help text says.
        help: one or two sentences for ``--help`` and docs/config.md, with the unit.
        aliases: other flags that mean the same in the forks our users come from, with their dashes.
        choices: the values that are allowed, when they are a short list of words.
        **checks: pydantic's own constraints: ``ge``, ``gt``, ``le``, ``lt`` …

    Returns:
        A pydantic field.
    """
    return Field(
        default, description=help, json_schema_extra={"aliases": list(aliases), "choices": list(choices)}, **checks
    )
