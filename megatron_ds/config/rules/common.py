"""What rules share: paths of options, and rules about any two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from megatron_ds.config.catalog import all_options
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem

Rule = Callable[[Settings], Iterator[Problem]]

TP = "parallel.tensor_model_parallel_size"
PP = "parallel.pipeline_model_parallel_size"
ZERO = "parallel.zero_stage"
GROUPS = "model.num_query_groups"
POSITIONS = "model.position_embedding_type"


def divisible(settings: Settings, path: str, by: str, rule: str) -> Iterator[Problem]:
    """The option `path` is a multiple of the option `by`; `rule` says why."""
    number, divisor = settings.value(path), settings.value(by)
    if number and divisor and number % divisor:
        names = settings.source(path).name, settings.source(by).name
        below, above = number // divisor * divisor, (number // divisor + 1) * divisor
        ways = f"{below} or {above}" if below else str(above)
        yield Problem(
            f"{names[0]} {number} is not a multiple of {names[1]} {divisor}: {rule}",
            settings.sources(path, by),
            f"use {names[0]} {ways}, or another {names[1]}",
        )


def given_in_vain(settings: Settings, paths: Iterable[str], needed: str, wanted: str) -> Iterator[Problem]:
    """Options that say something, other than the default, about a choice that was not made."""
    for path in paths:
        if path in settings and settings.value(path) != all_options()[path].default:
            name, choice = settings.source(path).name, settings.source(needed)
            yield Problem(
                f"{name} is given, and {choice.name} is {choice.value}: {name} says how {wanted} works",
                settings.sources(path, needed),
                f"give {wanted}, or leave {name} out (its default is {all_options()[path].default})",
            )


def head_size(settings: Settings) -> int | None:
    """The width of a head; None while it isn't known, or is no whole number."""
    width: int | None = settings.value("model.kv_channels")
    hidden, heads = settings.value("model.hidden_size"), settings.value("model.num_attention_heads")
    if width is None and hidden and heads and hidden % heads == 0:
        width = hidden // heads
    return width
