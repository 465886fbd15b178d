"""`Architecture`: everything that is known of one class of transformers, as data that both directions read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_ds.checkpoint.huggingface.config_keys import Entry
from megatron_ds.checkpoint.huggingface.layouts import SAME, Layout

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class Rule:
    """Which of their modules hold one of ours.

    Attributes:
        ours: canonical name of the module; ``{}`` is the number of the layer. Of rules that fit, the first counts.
        theirs: their modules, as many as the layout makes; ``{}`` is the same number, ``{previous}`` the one before,
            ``{last}`` that of the last layer.
        layout: how its weight and its bias lie in them.
        unused_rows: so many first rows of their tensor say nothing about the model.
    """

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = SAME
    unused_rows: int = 0


@dataclass(frozen=True)
class Place:
    """Where one of our parameters is in theirs.

    Attributes:
        theirs: names of their tensors.
        rule: the rule that says so.
    """

    theirs: tuple[str, ...]
    rule: Rule


@dataclass(frozen=True)
class Architecture:
    """One class of transformers.

    An option of `ModelConfig` that is named nowhere here has to be at its default, so that an option that is new is
    refused until somebody says where it goes.

    Attributes:
        name: of the class with the output head, such as ``LlamaForCausalLM``.
        model_type: what config.json calls it; classes of one body and several heads have it in common.
        entries: config.json ↔ our options.
        rules: their modules ↔ ours.
        prefix: of the names of all tensors but the head's; files of the model without its head leave it out.
        is_bare: it is the class without a head, which is written without prefix.
        always: our options that all models of the class have alike, other than by default.
        derived: our options that follow from others: of ``kv_channels``, ``num_query_groups``, ``ffn_hidden_size``.
        fixed: entries of config.json that have to have this value where they are given; written as well.
        no_matter: entries of config.json that change no output of the model.
        buffers: patterns of tensors that are no weights, without the prefix.
        unused: patterns of tensors that files of the class may have and that no output of it depends on.
        outside: what names without the prefix begin with.
        copies: name of a tensor that files may hold a second time → name of that tensor.
        older_endings: end of a name in older files → end of the name.
        zero_tables: our table of a model that may have none → theirs, which then has one row, of zeros.
        told_by: a tensor that of the classes of a model type only those with this head have; None: needs none.
        head: their module of an output head with its own weights.
        older_heads: other names of the same.
        usual_activation: of models with this one the class is tried first.
    """

    name: str
    model_type: str
    entries: tuple[Entry, ...]
    rules: tuple[Rule, ...]
    prefix: str
    always: Mapping[str, Any] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    no_matter: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    head: str = "lm_head"
    older_heads: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    older_endings: Mapping[str, str] = field(default_factory=dict)
    zero_tables: Mapping[str, str] = field(default_factory=dict)
    told_by: str | None = None
    is_bare: bool = False
    usual_activation: str | None = None

    @property
    def family(self) -> str:
        """Our family of models that it is of."""
        return str(self.always.get("model_type", "gpt"))

    def place(self, name: str, num_layers: int) -> Place:
        """Where our parameter `name` is in a model of so many layers."""
        module, _, kind = name.rpartition(".")
        layer = _LAYER.match(module)
        template = _LAYER.sub("layers.{}.", module)
        rules = (*self.rules, Rule("lm_head", (self.head,)))
        rule = next(rule for rule in rules if rule.ours in (module, template))
        number = int(layer.group(1)) if layer else 0
        modules = (theirs.format(number, previous=number - 1, last=num_layers - 1) for theirs in rule.theirs)
        return Place(tuple(self._written(f"{module}.{kind}") for module in modules), rule)

    def zero_tables_without(self, names: Collection[str]) -> list[str]:
        """Their tables that have to say nothing, because `names` of our parameters lack them."""
        return [self._written(theirs) for ours, theirs in self.zero_tables.items() if ours not in names]

    def is_buffer(self, name: str) -> bool:
        """Whether their tensor `name` is no weight."""
        return any(re.fullmatch(pattern, name.removeprefix(self.prefix)) for pattern in self.buffers)

    def is_unused(self, name: str) -> bool:
        """Whether their tensor `name` is a weight that the class does not read."""
        return any(re.fullmatch(pattern, name.removeprefix(self.prefix)) for pattern in self.unused)

    def name_in_class(self, name: str, *, has_prefix: bool) -> str:
        """What the class calls a tensor of a file.

        Args:
            name: in the file.
            has_prefix: whether names of the body have the prefix there: a model that was saved without head has none.
        """
        for older, ending in self.older_endings.items():
            if name.endswith(older):
                name = name.removesuffix(older) + ending
        for head in (self.head, *self.older_heads):
            if name == f"{head}.weight":
                return f"{self.head}.weight"
        return self._written(name if has_prefix or name.startswith(self.outside) else self.prefix + name)

    def _written(self, name: str) -> str:
        return name.removeprefix(self.prefix) if self.is_bare else name
