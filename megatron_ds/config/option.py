"""How an option is declared: once, with its help text, its checks, and its older names beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class OptionBlock(BaseModel):
    """Base of the blocks of a run's configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def option(
    default: Any,
    help: str,
    *,
    aliases: tuple[str, ...] = (),
    older_values: Mapping[str, str] | None = None,
    switches: Mapping[str, str | bool] | None = None,
    long_text: bool = False,
    **checks: Any,
) -> Any:
    """Declares one option of a block.

    The flag is the field's name in Megatron's spelling (``num_layers`` → ``--num-layers``); the values that a short
    list of words allows are the field's type (``Literal["constant", "linear"]``).

    Args:
        default: the value when nobody gives one; None means "derived" or "off", as the help text says; ``...`` makes
            the option required.
        help: one or two sentences for ``--help`` and docs/config.md, with the unit.
        aliases: other flags that mean the same in the forks our users come from, with their dashes.
        older_values: other spellings of values, and what they mean today.
        switches: flags without a value, each of which means one value of this option (``--swiglu``).
        long_text: whether a text may be longer than a path, because it names several.
        **checks: pydantic's own constraints: ``ge``, ``gt``, ``le``, ``lt`` …

    Returns:
        A pydantic field.
    """
    extra: dict[str, Any] = {
        "aliases": list(aliases),
        "older_values": dict(older_values or {}),
        "switches": dict(switches or {}),
        "long_text": long_text,
    }
    return Field(default, description=help, json_schema_extra=extra, **checks)
