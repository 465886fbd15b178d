"""Values on their way to a `RunConfig`, each with the place it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megatron_ds.config.catalog import Option, all_options
from megatron_ds.config.migration import value_advice
from megatron_ds.config.spelling import nearest
from megatron_ds.errors import Problem, Source
from megatron_ds.utils.text import counted, quoted, value_text

DEFAULT_ORIGIN = "default"
# How the origin of a value from a model preset begins; the preset's name follows.
PRESET_ORIGIN = "preset "

# Characters of a value that a message shows at most.
_LONGEST = 100


@dataclass(frozen=True)
class Given:
    """A value and its origin, for instance ``--lr`` or ``my_ds.json: bf16.enabled``."""

    value: Any
    origin: str


class Settings(Mapping[str, Given]):
    """The options that somebody gave, by path. Reading falls back to the defaults; ``in`` and iteration don't.

    Args:
        given: the values that were given.
        world_size: number of processes.
        world_origin: where their number comes from.
    """

    def __init__(self, given: Mapping[str, Given], world_size: int, world_origin: str = "WORLD_SIZE") -> None:
        self._given = dict(given)
        self.world_size = world_size
        self.world_origin = world_origin

    def __getitem__(self, path: str) -> Given:
        return self._given[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def value(self, path: str) -> Any:
        """The value in force: given or default; None when there is neither."""
        assert path in all_options(), path
        return self._given[path].value if path in self._given else all_options()[path].default

    def origin(self, path: str) -> str:
        """Where the value in force comes from."""
        return self._given[path].origin if path in self._given else DEFAULT_ORIGIN

    def source(self, path: str) -> Source:
        """The value in force as a part of a problem."""
        return Source(all_options()[path].name, value_text(self.value(path)), self.origin(path))

    def sources(self, *paths: str) -> tuple[Source, ...]:
        """The values in force as parts of a problem."""
        return tuple(self.source(path) for path in paths)

    def with_given(self, more: Mapping[str, Given]) -> Settings:
        """A copy in which `more` stands over what was there."""
        return Settings({**self._given, **more}, self.world_size, self.world_origin)

    @property
    def precision(self) -> str:
        """``bf16``, ``fp16`` or ``fp32``."""
        return "bf16" if self.value("training.bf16") else "fp16" if self.value("training.fp16") else "fp32"

    @property
    def recompute_sources(self) -> dict[str, tuple[str, ...]]:
        """What is to be recomputed, `full` or `selective`, and the options that say so; more than one contradict."""
        found: dict[str, tuple[str, ...]] = {}
        for name, meaning in (
            ("recompute_granularity", self.value("training.recompute_granularity")),
            ("checkpoint_activations", "full" if self.value("training.checkpoint_activations") else None),
            ("recompute_activations", "selective" if self.value("training.recompute_activations") else None),
        ):
            if meaning is not None:
                found[meaning] = (*found.get(meaning, ()), f"training.{name}")
        return found

    @property
    def model_ranks(self) -> int:
        """Processes that hold one copy of the model: TP x PP."""
        tp: int = self.value("parallel.tensor_model_parallel_size")
        pp: int = self.value("parallel.pipeline_model_parallel_size")
        return tp * pp

    @property
    def dp_size(self) -> int | None:
        """Data-parallel size; None when TP x PP doesn't divide the number of processes."""
        replicas, rest = divmod(self.world_size, self.model_ranks)
        return None if rest else replicas

    @property
    def dp_source(self) -> Source:
        """The data-parallel size as a part of a problem, with how it follows from the number of processes."""
        tp = self.value("parallel.tensor_model_parallel_size")
        pp = self.value("parallel.pipeline_model_parallel_size")
        return Source(
            "data-parallel size",
            str(self.dp_size),
            f"{counted(self.world_size, 'process', 'processes')} / (TP {tp} x PP {pp})",
        )


def wrong_value(name: str, value: Any, origin: str, wanted: str, advice: str = "") -> Problem:
    """The problem of a value that has the wrong type or is out of range."""
    source = Source(name, shortened(value_text(value)), origin)
    return Problem(f"{name} is {wanted}, not {shortened(quoted(value))}", (source,), advice)


def wrong_option_value(option: Option, value: Any, origin: str, error: ValueError, name: str = "") -> Problem:
    """The problem of a value that an option can't have.

    Args:
        option: the option.
        value: what was given for it.
        origin: where.
        error: of the conversion, which says what is wanted.
        name: of the option in the place where it was given, if that is another one.
    """
    return wrong_value(name or option.name, value, origin, str(error), _advice(option, value))


def _advice(option: Option, value: Any) -> str:
    """What to give instead: what the fork's value is here, the word that was meant, the range, or the option's help."""
    instead = value_advice(option.path, value)
    if instead is not None:
        return instead
    guess = nearest(value, map(str, option.choices)) if isinstance(value, str) else None
    if guess is not None:
        return f"did you mean {guess}?"
    return f"use {option.range_text}" if option.range_text and _is_number(value) else f"{option.name}: {option.help}"


def _is_number(value: Any) -> bool:
    """Whether a value, or the text of a flag, is a number, be it one that the option can't have."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, bool)


def shortened(text: str) -> str:
    """`text` as it is if it is short, else its beginning and its length, so that a message stays one line."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text)} characters)"


def printable(text: str) -> str:
    """`text` without what a terminal or a UTF-8 file can't show: lone surrogates become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
