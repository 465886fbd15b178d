"""What the table of flags is made of: names, the forks that have them, and what to do where there is no such option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Names:
    """Flags, separated by spaces, by who has them.

    Attributes:
        both: BLOOM's fork and Microsoft's, as they are or once were.
        bloom: bigscience-workshop/Megatron-DeepSpeed alone.
        microsoft: microsoft/Megatron-DeepSpeed, now deepspeedai/Megatron-DeepSpeed, alone.
        others: Megatron-LM, other forks and Hugging Face; also keys of configs, without dashes.
    """

    both: str = ""
    bloom: str = ""
    microsoft: str = ""
    others: str = ""

    def by_owner(self) -> Iterator[tuple[str, str]]:
        """Each flag with who has it: ``both``, ``BLOOM``, ``Microsoft``, or nothing for others."""
        for owner, names in (
            ("both", self.both),
            ("BLOOM", self.bloom),
            ("Microsoft", self.microsoft),
            ("", self.others),
        ):
            for name in names.split():
                yield name, owner


@dataclass(frozen=True)
class Renamed:
    """Flags that are refused because the option has another name here, and means the same.

    Attributes:
        now: the option's name here, such as ``micro_batch_size``.
        names: the flags.
    """

    now: str
    names: Names


@dataclass(frozen=True)
class Refused:
    """Flags that have no counterpart of the same meaning.

    Attributes:
        advice: why, and what to do instead, as the message and the page say it.
        names: the flags.
    """

    advice: str
    names: Names


@dataclass(frozen=True)
class Topic:
    """Flags about one thing: a section of the page.

    Attributes:
        title: the section's.
        accepted: flags that the catalog of options knows: what they are called here is read off it.
        renamed: flags with another name here.
        refused: flags without a counterpart.
        clashes: flags that are an option here, but of another meaning, and what to do instead.
        notes: by flag, in which way the same option differs: in its default, or in what it does.
    """

    title: str
    accepted: Names = Names()
    renamed: tuple[Renamed, ...] = ()
    refused: tuple[Refused, ...] = ()
    clashes: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One flag of others, as the table has it.

    Attributes:
        flag: in the fork's spelling.
        owner: who has it, as in `Names.by_owner`.
        now: the option's name here, where it has another one.
        advice: what to do instead; None for an option that is accepted or renamed.
        note: how the same option differs.
    """

    flag: str
    owner: str
    now: str | None = None
    advice: str | None = None
    note: str = ""


def entries_of(topic: Topic) -> Iterator[Entry]:
    """The flags of one topic, accepted ones first.

    Args:
        topic: a section of the table.
    """
    for flag, owner in topic.accepted.by_owner():
        yield Entry(flag, owner, note=topic.notes.get(flag, ""))
    for renamed in topic.renamed:
        for flag, owner in renamed.names.by_owner():
            yield Entry(flag, owner, now=renamed.now, note=topic.notes.get(flag, ""))
    for refused in topic.refused:
        for flag, owner in refused.names.by_owner():
            yield Entry(flag, owner, advice=refused.advice, note=topic.notes.get(flag, ""))


def key_of(name: str) -> str:
    """A flag as a JSON key is spelt, so that dashes and underscores mean the same."""
    return name.removeprefix("--").replace("-", "_").lower()
