"""Entries of config.json that say how rotary embeddings turn, and those of sliding windows by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron_ds.checkpoint.huggingface.config_keys import UnsupportedError, Values

_LLAMA3 = {
    "factor": "rope_scaling_factor",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "original_max_position_embeddings": "rope_original_max_positions",
}


@dataclass(frozen=True)
class Rope:
    """``rope_parameters``, as transformers 5 has them, and what earlier versions had instead; both are written.

    Attributes:
        base_key: the earlier name of the base.
        percent_key: the earlier name of the share that is rotated; None: heads are rotated whole.
        default_percent: the share where nothing is said.
    """

    base_key: str = "rope_theta"
    percent_key: str | None = None
    default_percent: float = 1.0

    @property
    def keys(self) -> tuple[str, ...]:
        """Names in config.json."""
        older = (self.base_key, self.percent_key or "partial_rotary_factor")
        return ("rope_parameters", "rope_scaling", *older)

    @property
    def options(self) -> tuple[str, ...]:
        """Names in `ModelConfig`. How numbers are paired is no entry: it becomes an order of rows."""
        rotary = ("rotary_base", "rotary_percent", "rotary_interleaved", "rotary_seq_len_interpolation_factor")
        return (*rotary, "use_rope_scaling", *_LLAMA3.values())

    def write(self, options: Values) -> dict[str, Any]:
        """The entries."""
        base, percent = options["rotary_base"], options["rotary_percent"]
        if self.percent_key is None and percent != 1:
            raise UnsupportedError("rotary_percent", percent, "1")
        linear = options["rotary_seq_len_interpolation_factor"]
        scaling: dict[str, Any] = {"rope_type": "default"}
        if options["use_rope_scaling"]:
            scaling = {"rope_type": "llama3", **{theirs: options[ours] for theirs, ours in _LLAMA3.items()}}
        elif linear is not None:
            scaling = {"rope_type": "linear", "factor": linear}
        share = {} if self.percent_key is None else {"partial_rotary_factor": percent}
        return {
            "rope_parameters": {**scaling, "rope_theta": base, **share},
            self.base_key: base,
            **({} if self.percent_key is None else {self.percent_key: percent}),
            **({} if scaling["rope_type"] == "default" else {"rope_scaling": scaling}),
        }

    def read(self, config: Values) -> dict[str, Any]:
        """The options."""
        # In this order, as transformers does.
        parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(parameters, dict) or any(isinstance(value, dict) for value in parameters.values()):
            raise UnsupportedError("rope_parameters", parameters, "the same for all layers")
        percent_key = self.percent_key or "partial_rotary_factor"
        percent = parameters.get("partial_rotary_factor", config.get(percent_key, self.default_percent))
        if self.percent_key is None and percent not in (None, 1):
            raise UnsupportedError("partial_rotary_factor", percent, "1")
        return {
            "rotary_base": parameters.get("rope_theta", config.get(self.base_key)),
            "rotary_percent": percent,
            **_scaling(parameters, config),
        }


def _scaling(parameters: dict[str, Any], config: Values) -> dict[str, Any]:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return {}
    if kind == "linear":
        return {"rotary_seq_len_interpolation_factor": parameters.get("factor")}
    if kind != "llama3":
        raise UnsupportedError("rope_parameters: rope_type", kind, "default, linear or llama3")
    number = "original_max_position_embeddings"
    numbers = {number: config.get("max_position_embeddings"), **parameters}
    # As in transformers, where it stands beside the parameters it counts.
    numbers[number] = config.get(number, numbers[number])
    if missing := [name for name in _LLAMA3 if numbers.get(name) is None]:
        raise UnsupportedError("rope_parameters", f"llama3 without {' and '.join(missing)}", "all numbers of llama3")
    return {"use_rope_scaling": True, **{ours: numbers[theirs] for theirs, ours in _LLAMA3.items()}}


@dataclass(frozen=True)
class WindowByLayer:
    """A sliding window that some layers have and others not; in ours all or none have it."""

    keys: tuple[str, ...] = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
    options: tuple[str, ...] = ("window_size",)

    def write(self, options: Values) -> dict[str, Any]:
        """The entries."""
        window, layers = options["window_size"], options["num_layers"]
        return {
            "use_sliding_window": window is not None,
            "sliding_window": window,
            # The first layer that has a window.
            **({} if window is None else {"max_window_layers": 0}),
            "layer_types": ["full_attention" if window is None else "sliding_attention"] * layers,
        }

    def read(self, config: Values) -> dict[str, Any]:
        """The option."""
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window", False) else None
        layers = range(config.get("num_hidden_layers", 32))
        first = config.get("max_window_layers", 28)
        by_number = ["full_attention" if window is None or layer < first else "sliding_attention" for layer in layers]
        kinds = set(config.get("layer_types") or by_number)
        if len(kinds) > 1 or not kinds <= {"full_attention", "sliding_attention"}:
            raise UnsupportedError("layer_types", " and ".join(sorted(map(str, kinds))), "one kind for all layers")
        return {"window_size": window if kinds == {"sliding_attention"} else None}
