"""How attention learns of positions: rotary embeddings, ALiBi's slopes, and counting from each document's start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig


def document_positions(document_ids: Tensor) -> Tensor:
    """The position of each token in its own document, counted from 0.

    Args:
        document_ids: ``[B, S]``, growing along S.

    Returns:
        int64 ``[B, S]``.
    """
    # Where an id would be inserted is where its document starts.
    starts = torch.searchsorted(document_ids, document_ids)
    return torch.arange(document_ids.shape[1], device=document_ids.device) - starts


def rotary_frequencies(config: ModelConfig, device: torch.device | None = None) -> Tensor:
    """Angle per position of each rotated pair: ``base^(-2i/R)`` for pair i of R/2, then scaled.

    Source: Su et al. 2021, "RoFormer", section 3.2.2. Linear scaling (Chen et al. 2023, "Extending Context Window of
    Large Language Models via Positional Interpolation") divides all of them.

    Args:
        config: the architecture; R is its `rotary_size`.
        device: where the result lives.

    Returns:
        fp32 ``[R/2]``, in radians.
    """
    pairs = torch.arange(0, config.rotary_size, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / config.rotary_base ** (pairs / config.rotary_size)
    if config.use_rope_scaling:
        return _scaled_as_llama3(frequencies, config)
    return frequencies / (config.rotary_seq_len_interpolation_factor or 1.0)


def _scaled_as_llama3(frequencies: Tensor, config: ModelConfig) -> Tensor:
    """Llama 3.1's scaling, with P original positions, factor f, low and high factors a and b.

    Wavelengths above P/a are stretched f times, those below P/b stay, and between them the share that stays grows as
    ``(P / wavelength - a) / (b - a)``. Source: `apply_scaling` in Meta's llama-models.
    """
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    turns = config.rope_original_max_positions * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / config.rope_scaling_factor


def rotate(heads: Tensor, angles: tuple[Tensor, Tensor], *, interleaved: bool) -> Tensor:
    """Turns pairs of numbers of each head by their position's angles; what is wider than the angles stays.

    Computed in fp32, because a cosine in bf16 is off by up to 4e-3.

    Args:
        heads: ``[B, N, S, D]``.
        angles: cosines and sines, each fp32 ``[1 or B, 1, S, R/2]``.
        interleaved: pairs are neighbours (GPT-J) instead of one number from each half of R (NeoX, Llama).

    Returns:
        ``[B, N, S, D]`` in the dtype of `heads`.
    """
    cosines, sines = angles
    width = 2 * cosines.shape[-1]
    turned, rest = heads[..., :width].float(), heads[..., width:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = first * cosines - second * sines, second * cosines + first * sines
    turned = (torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)).to(heads.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def alibi_slopes(num_heads: int) -> Tensor:
    """How much less a head looks at a token for each position that it lies further back.

    For n heads, n a power of two, ``2^(-8 i / n)`` with i = 1 … n. Otherwise the slopes of the next lower power of
    two, and every second one of the next higher, as in the authors' code. Source: Press et al. 2022, "Train Short,
    Test Long", section 3.

    Args:
        num_heads: heads of the whole model.

    Returns:
        fp32 ``[num_heads]``.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32)
