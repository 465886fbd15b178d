"""What rules share: paths of options, and rules about any two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from megatron_ds.config.catalog import all_options
from megatron_ds.config.settings import PRESET_ORIGIN, Settings
from megatron_ds.errors import Problem
from megatron_ds.utils.text import value_text

Rule = Callable[[Settings], Iterator[Problem]]

TP = "parallel.tensor_model_parallel_size"
PP = "parallel.pipeline_model_parallel_size"
ZERO = "parallel.zero_stage"
GROUPS = "model.num_query_groups"
POSITIONS = "model.position_embedding_type"
HIDDEN = "model.hidden_size"
HEADS = "model.num_attention_heads"

# Multiples of a size that are looked at, on both sides, for one to suggest.
_FARTHEST = 1000


def divisible(
    settings: Settings, path: str, by: str, rule: str, fits: Callable[[Settings, int], bool] | None = None
) -> Iterator[Problem]:
    """An option is a multiple of another one.

    Args:
        settings: the options.
        path: the option.
        by: the other one.
        rule: why, for the message.
        fits: whether a value of the option keeps the other rules; only such values are suggested.

    Yields:
        The problem, if there is one.
    """
    number, divisor = settings.value(path), settings.value(by)
    if number and divisor and number % divisor:
        names = settings.source(path).name, settings.source(by).name
        near = _near_multiples(number, divisor, lambda multiple: fits is None or fits(settings, multiple))
        ways = f"{names[0]} {' or '.join(map(str, near))}, or " if near else ""
        yield Problem(
            f"{names[0]} {number} is not a multiple of {names[1]} {divisor}: {rule}",
            settings.sources(path, by),
            f"use {ways}another {names[1]}",
        )


def _near_multiples(number: int, step: int, fits: Callable[[int], bool]) -> list[int]:
    """The nearest multiples of `step` below and above `number` that fit."""
    below = number // step * step
    sides = (range(below, 0, -step), range(below + step, below + (_FARTHEST + 1) * step, step))
    found = [next(filter(fits, side[:_FARTHEST]), None) for side in sides]
    return [multiple for multiple in found if multiple is not None]


def given_in_vain(settings: Settings, paths: Iterable[str], needed: str, wanted: str) -> Iterator[Problem]:
    """Options that say something, other than the default, about a choice that was not made."""
    for path in paths:
        if path in settings and settings.value(path) != all_options()[path].default:
            name, choice = settings.source(path).name, settings.source(needed)
            without = _way_without(settings, path, needed)
            yield Problem(
                f"{name} is given, and {choice.name} is {choice.value}: {name} says how {wanted} works",
                settings.sources(path, needed),
                f"give {wanted}, or {without}",
            )


def _way_without(settings: Settings, path: str, needed: str) -> str:
    """How an option gets its default again; what a preset says can't be left out, only be given anew."""
    option, default = all_options()[path], value_text(all_options()[path].default)
    if not settings.origin(path).startswith(PRESET_ORIGIN):
        return f"leave {option.name} out (its default is {default})"
    if option.default is None:
        return f"the model's options instead of the preset, which has {option.name} for its own {_name(needed)}"
    flag = {"true": option.flag, "false": f"--no-{option.flag[2:]}"}.get(default, f"{option.flag} {default}")
    return f"{flag}, its default, as well: the preset has {option.name} for its own {_name(needed)}"


def _name(path: str) -> str:
    return all_options()[path].name
