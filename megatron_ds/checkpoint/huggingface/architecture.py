"""`Architecture`: everything that is known of one class of transformers, as data that both directions read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_ds.checkpoint.huggingface.config_keys import Entry
from megatron_ds.checkpoint.huggingface.layouts import SAME, Layout

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class Rule:
    """Which of their modules hold one of ours.

    Attributes:
        ours: canonical name of the module; ``{}`` is the number of the layer.
        theirs: their modules, as many as the layout makes.
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
        model_type: what config.json calls it.
        entries: config.json ↔ our options.
        rules: their modules ↔ ours.
        prefix: of the names of all tensors but the head's; files of the model without its head leave it out.
        always: our options that all models of the class have alike, other than by default.
        derived: our options that follow from others: of ``kv_channels``, ``num_query_groups``, ``ffn_hidden_size``.
        fixed: entries of config.json that have to have this value where they are given; written as well.
        no_matter: entries of config.json that change no output of the model.
        buffers: patterns of tensors that are no weights, without the prefix.
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
    usual_activation: str | None = None

    def place(self, name: str) -> Place:
        """Where our parameter `name` is."""
        module, _, kind = name.rpartition(".")
        layer = _LAYER.match(module)
        template = _LAYER.sub("layers.{}.", module)
        rule = next(rule for rule in (*self.rules, Rule("lm_head", (self.head,))) if rule.ours == template)
        number = layer.group(1) if layer else ""
        return Place(tuple(f"{theirs.format(number)}.{kind}" for theirs in rule.theirs), rule)

    def is_buffer(self, name: str) -> bool:
        """Whether their tensor `name` is no weight."""
        return any(re.fullmatch(pattern, name.removeprefix(self.prefix)) for pattern in self.buffers)
