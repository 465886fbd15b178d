"""Rules about the model's architecture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from megatron_ds.config.blocks import rotary_width
from megatron_ds.config.rules.common import GROUPS, HEADS, HIDDEN, POSITIONS, TP, divisible, given_in_vain
from megatron_ds.config.rules.shapes import (
    head_size,
    head_size_sources,
    heads_fit,
    hidden_size_fits,
    padded_size_fits,
    padding_step,
    turns_pairs,
)
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem, Source

_RESIDUAL = "model.residual_connection"
_SCALING = "model.use_rope_scaling"
_SCALING_NUMBERS = tuple(
    f"model.{name}"
    for name in ("rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_positions")
)
_ROTARY = (
    *(f"model.rotary_{name}" for name in ("base", "percent", "interleaved", "seq_len_interpolation_factor")),
    _SCALING,
)
_DEEPNORM = ("model.deepnorm_alpha", "model.deepnorm_beta")


def heads_divide_hidden_size(settings: Settings) -> Iterator[Problem]:
    """Every head has the same width."""
    if settings.value("model.kv_channels") is None:
        rule = "all attention heads have the same width"
        yield from divisible(settings, HIDDEN, HEADS, rule, hidden_size_fits)


def groups_divide_heads(settings: Settings) -> Iterator[Problem]:
    """Each head of keys and values serves the same number of attention heads."""
    rule = "each group of attention heads has the same number of them"
    yield from divisible(settings, HEADS, GROUPS, rule, heads_fit)


def rotated_width_is_even(settings: Settings) -> Iterator[Problem]:
    """Rotary embeddings turn pairs of numbers."""
    width, percent = head_size(settings), settings.value("model.rotary_percent")
    if width is None or turns_pairs(settings, width):
        return
    product, ways = "", "use a --rotary-percent, or a head width, that gives an even number of at least 2"
    exact = Fraction(str(percent)) * width
    if exact.denominator == 1 and exact != rotary_width(width, percent):
        product = f": in floating point, as Megatron and transformers compute it, it is {width * percent}"
        more = round(percent + 1e-6, 12)
        ways = f"--rotary-percent {more} gives {rotary_width(width, more)}; {ways}" if exact % 2 == 0 else ways
    yield Problem(
        f"rotary embeddings turn pairs of numbers, and {percent} of a head's width {width}, rounded down, is "
        f"{rotary_width(width, percent)}{product}",
        (*settings.sources("model.rotary_percent"), *head_size_sources(settings)),
        ways,
    )


def rotary_options_have_rope(settings: Settings) -> Iterator[Problem]:
    """Options of rotary embeddings need them."""
    if settings.value(POSITIONS) != "rope":
        yield from given_in_vain(settings, _ROTARY, POSITIONS, "--position-embedding-type rope")


def rope_scaling_options_have_scaling(settings: Settings) -> Iterator[Problem]:
    """The numbers of Llama 3's scaling need its switch."""
    if not settings.value(_SCALING):
        yield from given_in_vain(settings, _SCALING_NUMBERS, _SCALING, "--use-rope-scaling")


def one_rope_scaling(settings: Settings) -> Iterator[Problem]:
    """Positions are scaled in one way."""
    linear = "model.rotary_seq_len_interpolation_factor"
    if settings.value(_SCALING) and settings.value(linear) is not None:
        yield Problem(
            "use_rope_scaling and rotary_seq_len_interpolation_factor are both given: positions are scaled in one way",
            settings.sources(_SCALING, linear),
            "keep Llama 3's scaling or the linear one",
        )


def rope_scaling_factors_are_ordered(settings: Settings) -> Iterator[Problem]:
    """Between the two wavelengths the scaling changes smoothly, so they are in order."""
    low, high = "model.rope_low_freq_factor", "model.rope_high_freq_factor"
    if settings.value(_SCALING) and settings.value(low) >= settings.value(high):
        yield Problem(
            f"rope_low_freq_factor {settings.value(low)} is not below rope_high_freq_factor {settings.value(high)}",
            settings.sources(low, high),
            "Llama 3 has 1 and 4",
        )


def deepnorm_options_have_deepnorm(settings: Settings) -> Iterator[Problem]:
    """DeepNorm's factors need DeepNorm."""
    if settings.value(_RESIDUAL) != "deepnorm":
        yield from given_in_vain(settings, _DEEPNORM, _RESIDUAL, "--residual-connection deepnorm")


def fp32_residual_is_before_norms(settings: Settings) -> Iterator[Problem]:
    """Where norms stand on the residual stream, the stream is what the layers compute in."""
    path = "model.fp32_residual_connection"
    if settings.value(path) and settings.value(_RESIDUAL) in ("post_ln", "deepnorm"):
        yield Problem(
            f"fp32_residual_connection can't be with residual_connection {settings.value(_RESIDUAL)}: there the "
            "stream comes out of a norm, in the precision of the layers",
            settings.sources(path, _RESIDUAL),
            "leave --fp32-residual-connection out, or use pre_ln or parallel",
        )


def prefix_has_the_sample_to_itself(settings: Settings) -> Iterator[Problem]:
    """A prefix is the beginning of a whole sample, all of it seen."""
    for path in ("data.reset_position_ids", "data.reset_attention_mask", "model.window_size"):
        if settings.value("model.prefix_lm") and settings.value(path):
            name = settings.source(path).name
            yield Problem(
                f"prefix_lm can't be with {name}: a prefix is the beginning of a whole sample, and all of it is seen",
                settings.sources("model.prefix_lm", path),
                f"leave --prefix-lm or --{name.replace('_', '-')} out",
            )


def padded_vocabulary_is_shared_evenly(settings: Settings) -> Iterator[Problem]:
    """A given padded size is cut evenly; a divisor that somebody asked for divides it too, as in BLOOM's fork."""
    path, divisor = "model.pad_vocab_size_to", "model.make_vocab_size_divisible_by"
    rule = "each tensor-parallel rank has the same number of rows"
    yield from divisible(settings, path, TP, rule, padded_size_fits)
    # The default of the divisor is nobody's wish.
    if divisor in settings:
        yield from divisible(settings, path, divisor, "that is what the second option asks for", padded_size_fits)


def padded_vocabulary_holds_all_ids(settings: Settings) -> Iterator[Problem]:
    """Padding adds rows. A vocabulary whose size the tokenizer says is compared when that is known."""
    size, padded = settings.value("model.vocab_size"), settings.value("model.pad_vocab_size_to")
    if size and padded and padded < size:
        divisor = "model.make_vocab_size_divisible_by"
        step = padding_step(settings.value(TP), settings.value(divisor), divisor_is_given=divisor in settings)
        sources = settings.sources("model.vocab_size")
        yield too_little_padding(size, settings.source("model.pad_vocab_size_to"), step, sources)


def too_little_padding(vocab_size: int, padded: Source, step: int, sources: tuple[Source, ...] = ()) -> Problem:
    """The problem of a padded size that is less than the vocabulary.

    Args:
        vocab_size: number of ids in use.
        padded: the value of ``pad_vocab_size_to``.
        step: what it is a multiple of.
        sources: where the vocabulary size comes from, if an option says it.
    """
    least = math.ceil(vocab_size / step) * step
    more = "more" if step == 1 else f"a larger multiple of {step}"
    return Problem(
        f"pad_vocab_size_to {padded.value} is less than the vocabulary of {vocab_size} ids",
        (padded, *sources),
        f"use {least} or {more}, or leave pad_vocab_size_to out",
    )


def sequence_fits_positions(settings: Settings) -> Iterator[Problem]:
    """There is a position embedding for each token of a sample."""
    sequence, positions = settings.value("model.seq_length"), settings.value("model.max_position_embeddings")
    if settings.value(POSITIONS) == "learned_absolute" and sequence and positions and sequence > positions:
        yield Problem(
            f"seq_length {sequence} is more than max_position_embeddings {positions}",
            settings.sources("model.seq_length", "model.max_position_embeddings"),
            f"use a sequence length of at most {positions}, or more positions",
        )
