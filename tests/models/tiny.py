"""A tiny model without dropout."""

from __future__ import annotations

from megatron_ds.config.blocks import ModelConfig


def tiny_model(**changes: object) -> ModelConfig:
    """The model's options with `changes`."""
    options: dict[str, object] = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 16,
        "vocab_size": 61,
        "make_vocab_size_divisible_by": 1,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        **changes,
    }
    return ModelConfig(**options)
