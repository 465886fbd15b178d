"""What becomes of a flag of the forks: read off the catalog where it is an option, else off the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from megatron_ds.config.catalog import Option, all_options
from megatron_ds.config.flags import SWITCHES, TEXT_FLAGS
from megatron_ds.config.migration.entries import Entry, Topic, key_of

Word = Literal["same", "renamed", "other meaning", "refused"]


@dataclass(frozen=True)
class Verdict:
    """What becomes of a flag.

    Attributes:
        word: in a word.
        text: what to write instead, or why not; empty for a flag that is the same.
    """

    word: Word
    text: str = ""


def verdict(topic: Topic, entry: Entry, find: Callable[[str], str | None]) -> Verdict:
    """What becomes of a flag of a run or a tool.

    Args:
        topic: the section that the flag is in.
        entry: the flag.
        find: what a flag is called here, if it is accepted.

    Raises:
        LookupError: the table calls the flag accepted, and it is not.
    """
    if entry.flag in topic.clashes:
        return Verdict("other meaning", topic.clashes[entry.flag])
    if entry.advice is not None:
        return Verdict("refused", entry.advice)
    if entry.now is not None:
        return Verdict("renamed", f"`--{entry.now.replace('_', '-')}`")
    flag = "--" + key_of(entry.flag).replace("_", "-")
    now = find(flag)
    if now is None:
        raise LookupError(f"{entry.flag} is listed as accepted, and is no option")
    return Verdict("same") if now == flag else Verdict("renamed", f"`{now}`; the old flag works")


def name_in_a_run(flag: str) -> str | None:
    """What a flag of a run is called here; None when it is not accepted.

    Args:
        flag: with dashes.
    """
    if flag in TEXT_FLAGS or flag in SWITCHES:
        return flag
    for option in all_options().values():
        if flag in (option.flag, *option.aliases):
            return option.flag
        if flag in option.switches:
            return _with_value(option, option.switches[flag])
    return None


def _with_value(option: Option, value: str | bool) -> str:
    if isinstance(value, bool):
        return option.flag if value else option.flag.replace("--", "--no-", 1)
    return f"{option.flag} {value}"
