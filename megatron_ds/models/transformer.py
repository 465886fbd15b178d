"""The transformer layer and the layers around the stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.attention import AttentionScheme, ParallelAttention
from megatron_ds.models.mlp import ParallelMLP
from megatron_ds.models.norms import norm_class
from megatron_ds.mpu import ModelParallelUnit, shared_weight


def residual_dropout(stream: Tensor, share: float, training: bool, mpu: ModelParallelUnit) -> Tensor:
    """Dropout on the residual stream.

    Args:
        stream: ``[S, B, H]``, or with sequence parallelism this rank's ``[S/tp, B, H]``.
        share: of the elements that are dropped.
        training: whether any are.
        mpu: where this rank sits.
    """
    if mpu.sequence_parallel and training and share > 0:
        with mpu.rng.fork():
            return F.dropout(stream, share, training)
    # The default random stream: ranks that compute the same elements of the residual stream must drop the same ones.
    return F.dropout(stream, share, training)


class ParallelTransformerLayer(nn.Module):
    """Attention and MLP with their norms, joined to the residual stream as `residual_connection` says.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        scheme: what attention knows of positions.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, scheme: AttentionScheme) -> None:
        super().__init__()
        norm = norm_class(config)
        self.mpu = mpu
        self.dropout = config.hidden_dropout
        self.alpha = config.residual_alpha
        self.join = _JOINS[config.residual_connection]
        self.input_layernorm = norm(config, config.hidden_size, mpu)
        self.attention = ParallelAttention(config, mpu, scheme)
        self.post_attention_layernorm = norm(config, config.hidden_size, mpu)
        self.mlp = ParallelMLP(config, mpu)

    def forward(self, hidden: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """``[S, B, H] -> [S, B, H]``; with `document_ids`, ``[B, S]``, where the attention's scheme reads them."""
        return self.join(self, hidden, partial(self.attention, document_ids=document_ids))

    def drop(self, update: Tensor) -> Tensor:
        """Dropout of what is added to the residual stream."""
        return residual_dropout(update, self.dropout, self.training, self.mpu)

    def residual(self, hidden: Tensor) -> Tensor:
        """What the residual stream contributes to a sum: itself, times DeepNorm's alpha."""
        return hidden if self.alpha == 1 else self.alpha * hidden


Attend = Callable[[Tensor], Tensor]


def _pre_ln(layer: ParallelTransformerLayer, hidden: Tensor, attend: Attend) -> Tensor:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""
    hidden = hidden + layer.drop(attend(layer.input_layernorm(hidden)))
    return hidden + layer.drop(layer.mlp(layer.post_attention_layernorm(hidden)))


def _post_ln(layer: ParallelTransformerLayer, hidden: Tensor, attend: Attend) -> Tensor:
    """``x = norm(x)``, ``alpha x + attention(x)``, then ``x = norm(x)``, ``alpha x + mlp(x)``.

    The norm that ends a post-LN layer stands at the beginning of the next one, as in Megatron and GLM-130B: so the
    first layer normalises the embeddings, and the final norm ends the last layer.
    """
    hidden = layer.input_layernorm(hidden)
    hidden = layer.post_attention_layernorm(layer.residual(hidden) + layer.drop(attend(hidden)))
    return layer.residual(hidden) + layer.drop(layer.mlp(hidden))


def _parallel(layer: ParallelTransformerLayer, hidden: Tensor, attend: Attend) -> Tensor:
    """``x + attention(norm(x)) + mlp(norm'(x))``."""
    attended = layer.drop(attend(layer.input_layernorm(hidden)))
    return hidden + attended + layer.drop(layer.mlp(layer.post_attention_layernorm(hidden)))


_JOINS: Mapping[str, Callable[[ParallelTransformerLayer, Tensor, Attend], Tensor]] = {
    "pre_ln": _pre_ln,
    "post_ln": _post_ln,
    "deepnorm": _post_ln,
    "parallel": _parallel,
}


class EmbeddingDropout(nn.Module):
    """The last step before the transformer layers: dropout, and the residual stream's dtype.

    Args:
        config: the architecture.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__()
        self.mpu = mpu
        self.dropout = config.hidden_dropout
        self.in_fp32 = config.fp32_residual_connection

    def forward(self, embeddings: Tensor) -> Tensor:
        """``[S, B, H] -> [S, B, H]``."""
        embeddings = embeddings.float() if self.in_fp32 else embeddings
        return residual_dropout(embeddings, self.dropout, self.training, self.mpu)


class PositionEmbedding(EmbeddingDropout):
    """Adds a learned vector per position, then does what `EmbeddingDropout` does.

    A layer of its own, so that the word embeddings before it hold nothing but what the output head shares.

    Args:
        config: the architecture.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__(config, mpu)
        self.weight = nn.Parameter(torch.empty(config.num_positions, config.hidden_size))
        self.weight.init_std = config.init_method_std  # type: ignore[attr-defined]

    def forward(self, embeddings: Tensor, positions: Tensor | None = None) -> Tensor:
        """``[S, B, H] -> [S, B, H]``.

        Args:
            embeddings: of the tokens; with sequence parallelism of this rank's slice of them.
            positions: of each token of the whole sample, ``[B, S]``; counted along the sample when not given.
        """
        length = embeddings.shape[0]
        first = self.mpu.tp_rank * length if self.mpu.sequence_parallel else 0
        weight = shared_weight(self.weight, self.mpu)
        if positions is None:
            vectors = weight[first : first + length].unsqueeze(1)
        else:
            vectors = F.embedding(positions[:, first : first + length].transpose(0, 1), weight)
        return super().forward(embeddings + vectors)
