"""Options of Megatron-LM, its forks and Hugging Face: what they are called here, or what to do instead.

One table, a file for each subject. The parser's messages, the hints on keys of a JSON and docs/migrating.md are read
off it; what an accepted flag is called here is read off the catalog of options.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from megatron_ds.config.migration.checkpoint import CHECKPOINTS, REPORTS
from megatron_ds.config.migration.data import DATA
from megatron_ds.config.migration.elsewhere import EXPERTS, OTHER_MODELS
from megatron_ds.config.migration.entries import Entry, Topic, entries_of, key_of
from megatron_ds.config.migration.model import KERNELS, MODEL
from megatron_ds.config.migration.parallel import DEEPSPEED, MEMORY, PARALLEL
from megatron_ds.config.migration.tools import EVALUATE, EVALUATION, FINETUNING, PREPROCESS, TOLD_BY_CHECKPOINT, VALUES
from megatron_ds.config.migration.training import BATCHES, LEARNING_RATE, PRECISION

# Flags of a run. A tool has flags of its own, which may mean something else.
RUN_TOPICS: tuple[Topic, ...] = (
    *(MODEL, BATCHES, LEARNING_RATE, PRECISION, PARALLEL, DEEPSPEED, MEMORY, DATA, CHECKPOINTS, REPORTS),
    *(FINETUNING, EVALUATION, KERNELS, EXPERTS, OTHER_MODELS),
)

# Flags of the forks' programs by the tool that takes their place, as its parser calls it.
TOOL_TOPICS: Mapping[str, Topic] = {"megatron-ds preprocess": PREPROCESS, "megatron-ds evaluate": EVALUATE}

__all__ = [
    "RUN_TOPICS",
    "TOOL_TOPICS",
    "advice_for",
    "clash_advice",
    "other_names",
    "renamed",
    "tool_advice",
    "value_advice",
]


@cache
def _entries() -> Mapping[str, Entry]:
    """The flags that are refused, by key."""
    return {
        key_of(entry.flag): entry
        for topic in RUN_TOPICS
        for entry in entries_of(topic)
        if entry.now is not None or entry.advice is not None
    }


def renamed(name: str) -> str | None:
    """The option's name here, for a name that it has elsewhere.

    Args:
        name: a flag or a key.
    """
    entry = _entries().get(key_of(name))
    return entry.now if entry is not None else None


def advice_for(name: str) -> str | None:
    """What to do instead of giving an option that is not here.

    Args:
        name: a flag or a key.
    """
    entry = _entries().get(key_of(name))
    return entry.advice if entry is not None else None


def clash_advice(name: str) -> str | None:
    """What to do instead of giving an option that means something else here; None for all other names.

    Args:
        name: a flag or a key.
    """
    clashes = {key_of(flag): advice for topic in RUN_TOPICS for flag, advice in topic.clashes.items()}
    return clashes.get(key_of(name))


def value_advice(path: str, value: object) -> str | None:
    """What to do instead of giving a value that the option takes elsewhere and not here.

    Args:
        path: of the option.
        value: what was given.
    """
    return VALUES.get(path, {}).get(value) if isinstance(value, str) else None


def tool_advice(tool: str, flag: str) -> str | None:
    """What to do instead of giving a flag to a tool; None when nobody has such a flag.

    Args:
        tool: what its parser calls it.
        flag: the flag.
    """
    for entry in entries_of(TOOL_TOPICS[tool]):
        if key_of(entry.flag) == key_of(flag) and entry.now is not None:
            return f"here it is --{entry.now.replace('_', '-')}"
        if key_of(entry.flag) == key_of(flag):
            return entry.advice
    if TOOL_TOPICS[tool] is EVALUATE:
        return TOLD_BY_CHECKPOINT if _is_flag_of_a_run(flag) else advice_for(flag)
    return None


def _is_flag_of_a_run(flag: str) -> bool:
    accepted = (entry.flag for topic in RUN_TOPICS for entry in entries_of(topic) if entry.advice is None)
    return any(key_of(each) == key_of(flag) for each in accepted)


def other_names() -> frozenset[str]:
    """Every name, in the spelling of JSON keys, that `renamed` or `advice_for` knows."""
    return frozenset(_entries())
