"""Which sizes of a model go together. A size that a message suggests is checked against these first."""

from __future__ import annotations

import math

from megatron_ds.config.blocks import GATED_ACTIVATIONS, default_ffn_size, rotary_width
from megatron_ds.config.rules.common import GROUPS, HEADS, HIDDEN, POSITIONS, TP
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Source

_WIDTH = "model.kv_channels"
_PADDED, _DIVISOR = "model.pad_vocab_size_to", "model.make_vocab_size_divisible_by"


def head_size(settings: Settings) -> int | None:
    """The width of a head; None while it isn't known, or is no whole number."""
    width: int | None = settings.value(_WIDTH)
    hidden, heads = settings.value(HIDDEN), settings.value(HEADS)
    if width is None and hidden and heads and hidden % heads == 0:
        width = hidden // heads
    return width


def head_size_sources(settings: Settings) -> tuple[Source, ...]:
    """The options that the width of a head follows from."""
    if settings.value(_WIDTH) is not None:
        return settings.sources(_WIDTH)
    return settings.sources(HIDDEN, HEADS)


def turns_pairs(settings: Settings, width: int) -> bool:
    """Whether rotary embeddings, if there are any, turn pairs of numbers of a head of this width."""
    rotated = rotary_width(width, settings.value("model.rotary_percent"))
    return settings.value(POSITIONS) != "rope" or (rotated > 0 and rotated % 2 == 0)


def ffn_size(settings: Settings, hidden: int) -> int:
    """Width inside the MLP that follows from a hidden size."""
    return default_ffn_size(hidden, gated=settings.value("model.activation") in GATED_ACTIVATIONS)


def hidden_size_fits(settings: Settings, hidden: int) -> bool:
    """Whether a hidden size goes with the other sizes."""
    heads, tp = settings.value(HEADS), settings.value(TP)
    if settings.value("model.ffn_hidden_size") is None and ffn_size(settings, hidden) % tp:
        return False
    if settings.value("training.distribute_saved_activations") and hidden % tp:
        return False
    if settings.value(_WIDTH) is not None or heads is None:
        return True
    return bool(hidden % heads == 0 and turns_pairs(settings, hidden // heads))


def heads_fit(settings: Settings, heads: int) -> bool:
    """Whether a number of attention heads goes with the other sizes."""
    hidden, groups = settings.value(HIDDEN), settings.value(GROUPS)
    if heads % settings.value(TP) or (groups and heads % groups):
        return False
    if settings.value(_WIDTH) is not None or hidden is None:
        return True
    return bool(hidden % heads == 0 and turns_pairs(settings, hidden // heads))


def seq_length_fits(settings: Settings, tokens: int) -> bool:
    """Whether there are positions for so many tokens."""
    positions = settings.value("model.max_position_embeddings")
    return settings.value(POSITIONS) != "learned_absolute" or positions is None or tokens <= positions


def padding_step(tp_size: int, divisor: int, *, divisor_is_given: bool) -> int:
    """What a given padded vocabulary size is a multiple of.

    Args:
        tp_size: ranks that share the vocabulary evenly.
        divisor: the value of make_vocab_size_divisible_by.
        divisor_is_given: False for its default, which is nobody's wish.
    """
    return math.lcm(tp_size, divisor) if divisor_is_given else tp_size


def padded_size_fits(settings: Settings, padded: int) -> bool:
    """Whether a padded vocabulary size can be cut evenly and holds all ids.

    While the tokenizer hasn't said how many there are, only a size above the given one surely holds as many as that.
    """
    divisor = settings.value(_DIVISOR)
    step = padding_step(settings.value(TP), divisor, divisor_is_given=_DIVISOR in settings)
    least: int = settings.value("model.vocab_size") or settings.value(_PADDED)
    return padded % step == 0 and padded >= least
