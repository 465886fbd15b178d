"""What an entry of config.json and an option of ours say of one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

# Options with all derived values filled in, or entries of config.json.
Values = Mapping[str, Any]


class UnsupportedError(Exception):
    """A value has no counterpart on the other side.

    Args:
        name: of the option or the entry.
        value: the one that has none.
        allowed: what would have one, as text.
    """

    def __init__(self, name: str, value: Any, allowed: str) -> None:
        super().__init__(name, value, allowed)
        self.name, self.value, self.allowed = name, value, allowed


class Entry(Protocol):
    """A few entries of config.json and the options of ours that they say the same as."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names in config.json."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names in `ModelConfig`."""

    def write(self, options: Values) -> dict[str, Any]:
        """Their entries. Raises `UnsupportedError` for an option that they can't say."""

    def read(self, config: Values) -> dict[str, Any]:
        """Our options; None means the default. Raises `UnsupportedError` for an entry that ours can't say."""


@dataclass(frozen=True)
class Key:
    """One entry, one option.

    Attributes:
        theirs: name in config.json.
        ours: name in `ModelConfig`.
        default: what transformers takes where the entry is missing.
        values: our value → theirs, where they are spelt otherwise; no other value can be said.
        also: further values of theirs → ours.
        other_names: what the entry may be called as well.
    """

    theirs: str
    ours: str
    default: Any = None
    values: Mapping[Any, Any] | None = None
    also: Mapping[Any, Any] = field(default_factory=dict)
    other_names: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The names in config.json."""
        return (self.theirs, *self.other_names)

    @property
    def options(self) -> tuple[str, ...]:
        """The name in `ModelConfig`."""
        return (self.ours,)

    def write(self, options: Values) -> dict[str, Any]:
        """The entry."""
        value = options[self.ours]
        if self.values is None:
            return {self.theirs: value}
        if value not in self.values:
            raise UnsupportedError(self.ours, value, " or ".join(map(str, self.values)))
        return {self.theirs: self.values[value]}

    def read(self, config: Values) -> dict[str, Any]:
        """The option."""
        value = next((config[name] for name in self.keys if name in config), self.default)
        if self.values is None:
            return {self.ours: value}
        ours = {**self.also, **{theirs: ours for ours, theirs in self.values.items()}}
        if not isinstance(value, str | bool | None) or value not in ours:
            raise UnsupportedError(self.theirs, value, " or ".join(map(str, ours)))
        return {self.ours: ours[value]}


# Ours → theirs. Their `gelu_fast`, `gelu_pytorch_tanh` … are other ways to compute the same.
_PLAIN_ACTIVATIONS = {
    "gelu_tanh": "gelu_new",
    "gelu": "gelu",
    "relu": "relu",
    "squared_relu": "relu2",
    "silu": "silu",
}
_GATED_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "liglu": "linear"}
_NOT = {False: True, True: False}


def activation(theirs: str, default: str) -> Key:
    """The function of an MLP without a gate."""
    tanh = dict.fromkeys(("gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh")
    also = {**tanh, "gelu_python": "gelu", "swish": "silu"}
    return Key(theirs, "activation", default, _PLAIN_ACTIVATIONS, also)


def gate_activation(theirs: str, default: str) -> Key:
    """The function of a gated MLP's gate."""
    return Key(theirs, "activation", default, _GATED_ACTIVATIONS, {"swish": "swiglu", "gelu_python": "geglu"})


def biases(theirs: str, default: bool) -> Key:
    """Whether linear layers have biases."""
    return Key(theirs, "disable_bias_linear", default, _NOT)


def tied(default: bool) -> Key:
    """Whether the output head is the word embeddings."""
    return Key("tie_word_embeddings", "untie_embeddings_and_output_weights", default, _NOT)
