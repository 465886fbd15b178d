"""Attention with masks and biases that are never written out: PyTorch's flex attention, for CUDA.

A kernel is compiled for the run's shapes at its first use. Pairs of 128 x 128 tokens that don't see each other are left
out, so that many documents in one sample, or a window, cost less than one document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

TILE = 128
# PyTorch's kernels take no smaller heads; nor do they know dropout.
LEAST_HEAD_SIZE = 16


class FlexAttention:
    """Causal attention with any of: a window, ALiBi, documents that don't see each other; or with a prefix.

    Args:
        window_size: tokens that a token attends to, itself included; None for all before it.
        slopes: ALiBi's, fp32 ``[N/tp]`` on the device that computes; None without.
        has_prefix: every token attends to the tokens with id 0, the first of their sample; ids are no documents then.
        compiled: False runs the operation without a kernel, which writes all scores out; for tests.
    """

    def __init__(
        self, window_size: int | None, slopes: Tensor | None, *, has_prefix: bool = False, compiled: bool = True
    ) -> None:
        self._window_size = window_size
        self._has_prefix = has_prefix
        self._bias = _alibi(slopes) if slopes is not None else None
        kernel: Any = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
        self._attend = kernel
        # All layers of a stage see the same documents, one micro-batch after the other.
        self._last: tuple[int, Tensor | None, BlockMask] | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, document_ids: Tensor | None) -> Tensor:
        """``[B, N/tp, S, D]`` from queries of that shape, and keys and values ``[B, G/tp, S, D]``.

        Args:
            query: the queries.
            key: the keys.
            value: the values.
            document_ids: ``[B, S]``, growing along S; None where all tokens before a token may be attended to. With a
                prefix, 0 in it.
        """
        mask = self._block_mask(query, document_ids)
        shared = query.shape[1] != key.shape[1]
        context: Tensor = self._attend(query, key, value, score_mod=self._bias, block_mask=mask, enable_gqa=shared)
        return context

    def _block_mask(self, query: Tensor, document_ids: Tensor | None) -> BlockMask:
        sequence = query.shape[2]
        if self._last is None or self._last[0] != sequence or self._last[1] is not document_ids:
            if self._has_prefix and document_ids is not None:
                mask = block_mask(sequence, query.device, prefix_ids=document_ids)
            else:
                mask = block_mask(sequence, query.device, self._window_size, document_ids)
            self._last = (sequence, document_ids, mask)
        return self._last[2]


def _alibi(slopes: Tensor) -> Callable[..., Tensor]:
    def bias(score: Tensor, _batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score - slopes[head] * (row - column).abs()

    return bias


def block_mask(
    sequence: int,
    device: torch.device,
    window_size: int | None = None,
    document_ids: Tensor | None = None,
    prefix_ids: Tensor | None = None,
) -> BlockMask:
    """Which tiles of 128 x 128 are computed, which of these need no mask, and the mask of the others.

    Found from the first and last token of each tile, so that nothing of sequence x sequence is made.

    Args:
        sequence: tokens S of a sample.
        device: where attention runs.
        window_size: tokens that a token attends to, itself included; None for all before it.
        document_ids: ``[B, S]``, growing along S: a token attends to its own document only.
        prefix_ids: ``[B, S]``, growing along S: all tokens attend to those with 0. Without the two others.
    """
    starts = torch.arange(0, sequence, TILE, device=device)
    ends = (starts + TILE - 1).clamp(max=sequence - 1)
    # Rows are tiles of queries, columns tiles of keys.
    nearest, farthest = starts[:, None] - ends, ends[:, None] - starts
    some = farthest >= 0
    every = nearest >= 0
    if window_size is not None:
        some = some & (nearest < window_size)
        every = every & (farthest < window_size)
    some, every = some[None], every[None]
    if document_ids is not None:
        first, last = document_ids[:, starts], document_ids[:, ends]
        # Each of the shape [B, rows, columns], by broadcasting.
        some = some & (last[:, None, :] >= first[:, :, None])
        every = every & (first[:, None, :] == last[:, :, None])
    if prefix_ids is not None:
        some = some | (prefix_ids[:, None, starts] == 0)
        every = every | (prefix_ids[:, None, ends] == 0)
    # A tile that the sequence does not fill has to be cut off.
    every = every & (ends - starts == TILE - 1) & (ends - starts == TILE - 1)[:, None]
    partial, full = _ordered(some & ~every), _ordered(every)
    return BlockMask.from_kv_blocks(
        *partial,
        *full,
        BLOCK_SIZE=TILE,
        mask_mod=_token_mask(window_size, document_ids) if prefix_ids is None else _with_prefix(prefix_ids),
        seq_lengths=(sequence, sequence),
    )


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The number of true tiles in each row, and the columns with those first, ``[B, 1, rows(, columns)]``."""
    counts = tiles.sum(-1, dtype=torch.int32)
    columns = tiles.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts.unsqueeze(1), columns.unsqueeze(1).contiguous()


def _token_mask(window_size: int | None, document_ids: Tensor | None) -> Callable[..., Tensor]:
    def causal(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return row >= column

    before = causal if window_size is None else _windowed(window_size)
    return before if document_ids is None else _within_documents(before, document_ids)


def _with_prefix(prefix_ids: Tensor) -> Callable[..., Tensor]:
    def with_prefix(batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (row >= column) | (prefix_ids[batch, column] == 0)

    return with_prefix


def _windowed(window_size: int) -> Callable[..., Tensor]:
    def windowed(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (row >= column) & (row - column < window_size)

    return windowed


def _within_documents(before: Callable[..., Tensor], document_ids: Tensor) -> Callable[..., Tensor]:
    def within(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return before(batch, head, row, column) & (document_ids[batch, row] == document_ids[batch, column])

    return within
