"""Causal self-attention with the heads split over the tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.mpu import ColumnParallelLinear, ModelParallelUnit, RowParallelLinear

CoreAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class ParallelAttention(nn.Module):
    """Multi-head causal attention through PyTorch's `scaled_dot_product_attention`.

    Args:
        config: the architecture.
        mpu: where this rank sits; each rank has ``num_attention_heads / tp_size`` heads.
        output_std: standard deviation of the output projection's initial weights.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, *, output_std: float) -> None:
        super().__init__()
        self.mpu = mpu
        self.heads_per_rank = config.num_attention_heads // mpu.tp_size
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        hidden_size = config.hidden_size
        self.query_key_value = ColumnParallelLinear(
            hidden_size, 3 * hidden_size, mpu, init_std=config.init_method_std, kind="qkv_groups"
        )
        self.dense = RowParallelLinear(hidden_size, hidden_size, mpu, init_std=output_std)

    def forward(self, hidden: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """``[S, B, H] -> [S, B, H]``.

        Args:
            hidden: the residual stream.
            document_ids: ``[B, S]``, growing along S; a token then attends to its own document only.
        """
        sequence, batch, _ = hidden.shape
        # [S, B, 3H/tp] -> [S, B, N/tp, 3, D] -> three of [B, N/tp, S, D]
        mixed = self.query_key_value(hidden).view(sequence, batch, self.heads_per_rank, 3, self.head_size)
        query, key, value = mixed.permute(3, 1, 2, 0, 4).unbind(0)
        context = self._attend(query, key, value, None if document_ids is None else document_mask(document_ids))
        # [B, N/tp, S, D] -> [S, B, H/tp]
        context = context.permute(2, 0, 1, 3).reshape(sequence, batch, self.heads_per_rank * self.head_size)
        output: Tensor = self.dense(context)
        return output

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        attend = partial(F.scaled_dot_product_attention, query, key, value, attn_mask=mask, is_causal=mask is None)
        if not (self.training and self.dropout > 0):
            return attend()
        # Each rank drops probabilities of its own heads, so the masks must differ over the tensor-parallel group.
        with self.mpu.rng.fork():
            return attend(dropout_p=self.dropout)

    def wrap_core(self, wrap: Callable[[CoreAttention], CoreAttention]) -> None:
        """Puts `wrap` of the core attention, from queries, keys and values to what they attend to, in its place."""
        self._attend = wrap(self._attend)  # type: ignore[method-assign, assignment]


def document_mask(document_ids: Tensor) -> Tensor:
    """Which tokens a token attends to: those before it in its own document, and itself.

    Args:
        document_ids: ``[B, S]``, growing along S.

    Returns:
        bool ``[B, 1, S, S]``: true where the query of the row attends to the key of the column.
    """
    same = document_ids.unsqueeze(2) == document_ids.unsqueeze(1)
    return same.tril_().unsqueeze(1)
