"""The transformer layer and the layers around the stack."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.attention import ParallelAttention
from megatron_ds.models.mlp import ParallelMLP
from megatron_ds.mpu import ModelParallelUnit


class ParallelTransformerLayer(nn.Module):
    """Pre-LN transformer layer: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``, with dropout on both.

    The two projections that write to the residual stream start with a standard deviation of ``std / sqrt(2 L)``,
    so that its variance does not grow with depth (Radford et al. 2019, section 2.3).

    Args:
        config: the architecture.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__()
        output_std = config.init_method_std / math.sqrt(2 * config.num_layers)
        self.dropout = config.hidden_dropout
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.attention = ParallelAttention(config, mpu, output_std=output_std)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.mlp = ParallelMLP(config, mpu, output_std=output_std)

    def forward(self, hidden: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """``[S, B, H] -> [S, B, H]``; with `document_ids`, ``[B, S]``, tokens attend to their own document only."""
        hidden = hidden + self._drop(self.attention(self.input_layernorm(hidden), document_ids))
        return hidden + self._drop(self.mlp(self.post_attention_layernorm(hidden)))

    def _drop(self, update: Tensor) -> Tensor:
        # The default random stream: every tensor-parallel rank must drop the same elements of the residual stream.
        return F.dropout(update, self.dropout, self.training)


class PositionEmbedding(nn.Module):
    """Adds a learned vector per position, then applies the embedding dropout.

    A layer of its own, so that the word embeddings before it hold nothing but what the output head shares.

    Args:
        config: the architecture.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        self.weight = nn.Parameter(torch.empty(config.num_positions, config.hidden_size))
        self.weight.init_std = config.init_method_std  # type: ignore[attr-defined]

    def forward(self, embeddings: Tensor, positions: Tensor | None = None) -> Tensor:
        """``[S, B, H] -> [S, B, H]``.

        Args:
            embeddings: of the tokens.
            positions: of each token, ``[B, S]``; counted along the whole sample when not given.
        """
        if positions is None:
            vectors = self.weight[: embeddings.shape[0]].unsqueeze(1)
        else:
            vectors = F.embedding(positions.transpose(0, 1), self.weight)
        return F.dropout(embeddings + vectors, self.dropout, self.training)
