"""The command line: flags are generated from the options, and every mistake on it is reported, not just the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from megatron_ds.config.catalog import Option, all_options, check_text, convert_text
from megatron_ds.config.migration import advice_for, clash_advice, renamed
from megatron_ds.config.settings import Given, wrong_option_value, wrong_value
from megatron_ds.config.spelling import did_you_mean
from megatron_ds.errors import Problem, Source
from megatron_ds.utils.text import counted

TEXT_FLAGS = {
    "--deepspeed-config": "DeepSpeed JSON, with or without a `megatron_ds` block: a file, or the name of one of ours.",
    "--config": "JSON with the `megatron_ds` block; stands over the block in the DeepSpeed JSON, below the flags.",
    "--model-preset": "Name of a model in configs/models, or a JSON file with model options. Takes the place of the "
    "preset that a block names; the block's other model options still stand over it.",
    "--local-rank": "Accepted from DeepSpeed's launcher and not used: ranks come from the environment.",
}
SWITCHES = {
    "--deepspeed": "Accepted for older scripts and not used: DeepSpeed always runs.",
    "--no-pipeline-parallel": "Accepted for older scripts; legal with a pipeline size of 1 only.",
    "--group-query-attention": "Accepted for Megatron's scripts, beside --num-query-groups, which is enough.",
    "--print-config": "Prints every value with its origin and the DeepSpeed JSON, then problems, if any, and stops.",
    "--help": "Prints this text and stops.",
}

# Words that people write after a switch, and what they mean by them.
_YES_OR_NO = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass
class CommandLine:
    """What a command line says.

    Attributes:
        options: options by path.
        texts: the values of the flags in `TEXT_FLAGS`.
        switches: those of `SWITCHES` that were given.
        problems: what is wrong with the command line.
        failed: paths of options whose value is among the problems.
    """

    options: dict[str, Given] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)


@cache
def _value_switches() -> Mapping[str, Option]:
    """Every flag that takes no value and stands for one value of an option."""
    return {flag: option for option in all_options().values() for flag in option.switches}


@cache
def _flags() -> Mapping[str, Option]:
    """Every flag that sets an option."""
    return {flag: option for option in all_options().values() for flag in (option.flag, *option.aliases)}


def _is_flag(word: str) -> bool:
    """True for ``--x`` and ``-h``; negative numbers are values."""
    return word.startswith("--") or word == "-h"


def parse_command_line(argv: Sequence[str]) -> CommandLine:
    """Reads a command line.

    Dashes and underscores inside a flag mean the same; ``--flag value`` and ``--flag=value`` too. A switch can be
    taken back with ``--no-…``. Of a flag that stands twice the last one counts, so that scripts can append theirs.
    Flags are not abbreviated.

    Args:
        argv: the words after the program's name.

    Returns:
        What they say, with the problems in them.
    """
    line = CommandLine()
    words = list(argv)
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            line.problems.append(Problem(f"unexpected argument {word!r}: options start with --"))
            continue
        flag, has_value, value = word.partition("=")
        flag = "--help" if flag == "-h" else flag.replace("_", "-")
        values = [value] if has_value else _words_after(line, flag, words)
        _take(line, flag, values)
    return line


def _words_after(line: CommandLine, flag: str, words: list[str]) -> list[str]:
    """Takes the words that belong to `flag` off the front of `words`."""
    values: list[str] = []
    while words and not _is_flag(words[0]) and len(values) < _room(flag):
        values.append(words.pop(0))
    if _is_switch(flag) and words and words[0].lower() in _YES_OR_NO:
        line.problems.append(_word_after_switch(flag, words[0]))
        meant = _YES_OR_NO[words.pop(0).lower()]
        # Taken as it was meant, so that no other problem follows from this one.
        values += [] if flag in SWITCHES or flag in _value_switches() else ["true" if meant else "false"]
    return values


def _is_switch(flag: str) -> bool:
    option = _flags().get(flag) or _flags().get(flag.replace("--no-", "--", 1))
    return flag in SWITCHES or flag in _value_switches() or (option is not None and option.kind == "bool")


def _word_after_switch(flag: str, word: str) -> Problem:
    ways = f"{flag} or {flag}=true" if _YES_OR_NO[word.lower()] else f"{flag}=false, or leave {flag} out"
    if flag in SWITCHES or flag in _value_switches():
        ways = f"{flag} alone, or leave it out"
    return Problem(f"{flag} is a switch and takes no word after it, found {word!r}", advice=f"write {ways}")


def _room(flag: str) -> float:
    """How many words the flag takes at most."""
    option = _flags().get(flag)
    if option is not None and option.kind == "list":
        return float("inf")
    if option is not None and option.kind == "bool":
        return 0
    # Taking the words after a flag that is refused, and the one after an unknown flag, leaves one problem of each.
    if option is None and (advice_for(flag) or renamed(flag)):
        return float("inf")
    return 0 if flag in SWITCHES or flag in _value_switches() or flag.startswith("--no-") else 1


def _take(line: CommandLine, flag: str, values: list[str]) -> None:
    """Stores one flag with its values, or a problem."""
    option = _flags().get(flag)
    negated = _flags().get(flag.replace("--no-", "--", 1)) if flag.startswith("--no-") else None
    if option is not None and option.kind == "bool":
        _take_switch(line, flag, option, values, meaning=True)
    elif option is not None:
        _take_option(line, flag, option, values)
    elif negated is not None and negated.kind == "bool":
        _take_switch(line, flag, negated, values, meaning=False)
    elif flag in _value_switches() and not values:
        option = _value_switches()[flag]
        _store(line, option, Given(option.switches[flag], flag))
    elif flag in TEXT_FLAGS and values:
        _take_text(line, flag, values[0])
    elif flag in TEXT_FLAGS:
        line.problems.append(Problem(f"{flag} needs a value", advice=TEXT_FLAGS[flag]))
    elif flag in SWITCHES and not values:
        line.switches.add(flag)
    elif flag in SWITCHES or flag in _value_switches():
        line.problems.append(Problem(f"{flag} takes no value, found {values[0]!r}", advice=f"write {flag} alone"))
    else:
        line.problems.append(_unknown_flag(flag))


def _unknown_flag(flag: str) -> Problem:
    name, advice = renamed(flag), advice_for(flag)
    if name is not None:
        return Problem(f"unknown option {flag}", advice=f"here it is --{name.replace('_', '-')}")
    if advice is not None:
        return Problem(f"{flag} is an option of Megatron or its forks that this project has not", advice=advice)
    known = (*_flags(), *_value_switches(), *TEXT_FLAGS, *SWITCHES)
    guess = did_you_mean(flag, known)
    return Problem(f"unknown option {flag}{guess}", advice="" if guess else "--help lists all options")


def _take_text(line: CommandLine, flag: str, text: str) -> None:
    try:
        check_text(text)
    except ValueError as error:
        line.problems.append(wrong_value(flag, text, flag, str(error)))
    else:
        line.texts[flag] = text


def _take_switch(line: CommandLine, flag: str, option: Option, values: list[str], *, meaning: bool) -> None:
    words = {"true": meaning, "false": not meaning}
    if values and values[0].lower() not in words:
        ways = f"write {flag}, {flag}=true or {flag}=false"
        line.problems.append(Problem(f"{flag} takes no value but true and false, found {values[0]!r}", advice=ways))
        return
    line.options[option.path] = Given(words[values[0].lower()] if values else meaning, flag)


def _take_option(line: CommandLine, flag: str, option: Option, values: list[str]) -> None:
    if not values:
        line.failed.add(option.path)
        line.problems.append(Problem(f"{flag} needs a value", advice=clash_advice(flag) or option.help))
        return
    try:
        value = convert_text(option, values if option.kind == "list" else values[0])
    except ValueError as error:
        line.failed.add(option.path)
        given = values[0] if len(values) == 1 else values
        line.problems.append(wrong_option_value(option, given, flag, error))
        return
    _store(line, option, Given(value, flag))


def _store(line: CommandLine, option: Option, given: Given) -> None:
    """Stores a value; another one from a flag that doesn't look like the same option is a contradiction."""
    before = line.options.get(option.path)
    if before is not None and before.value != given.value and {before.origin, given.origin} & set(option.switches):
        line.problems.append(
            Problem(
                f"{before.origin} and {given.origin} contradict each other: {option.name} is {before.value} or "
                f"{given.value}",
                tuple(Source(option.name, str(each.value), each.origin) for each in (before, given)),
                "keep one of the two",
            )
        )
    line.options[option.path] = given


def no_pipeline_problem(pp_size: int, origin: str) -> Problem:
    """The problem of ``--no-pipeline-parallel`` beside a pipeline."""
    return Problem(
        f"--no-pipeline-parallel contradicts a pipeline of {counted(pp_size, 'stage')}",
        (Source("pipeline_model_parallel_size", str(pp_size), origin),),
        "give one of the two",
    )


def no_groups_problem(origin: str) -> Problem:
    """The problem of ``--group-query-attention`` without a number of groups, of which Megatron would take one."""
    return Problem(
        "--group-query-attention is given and num_query_groups is not: how many heads share keys and values is open",
        (Source("num_query_groups", "null", origin),),
        "give --num-query-groups N; 1 is what Megatron would take",
    )
