"""The layers that BERT has and GPT has not: token types, and the heads.

Padding travels as document ids do (`megatron_ds.models.documents`): tokens with equal ids see each other. The ids are
the padding mask itself, so tokens see tokens, and padding sees padding, whose outputs count nowhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.documents import WithDocuments
from megatron_ds.models.layer_def import Activations
from megatron_ds.models.norms import norm_class
from megatron_ds.mpu import (
    ModelParallelUnit,
    ShardSpec,
    VocabParallelEmbedding,
    reduce_from_tensor_parallel,
    set_shard_spec,
    shared_weight,
)


class BertEmbedding(VocabParallelEmbedding):
    """Word embeddings that pass token types and the padding mask on."""

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """``([B, S], token types, mask) -> ([S, B, H], token types, mask)``."""
        tokens, token_types, padding_mask = inputs
        return super().forward(tokens), token_types, padding_mask


class TokenTypeEmbedding(nn.Module):
    """Adds a learned vector per token type, where token types end.

    Args:
        config: the architecture; without token types the layer only drops them.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__()
        self.mpu = mpu
        self.weight: nn.Parameter | None = None
        if config.token_types:
            self.weight = _whole(config.token_types, config.hidden_size, init_std=config.init_method_std)

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> WithDocuments:
        """``([S, B, H], token types [B, S], mask) -> ([S, B, H], mask)``; S is S/tp with sequence parallelism."""
        hidden, token_types, padding_mask = inputs
        if self.weight is None:
            return hidden, padding_mask
        length = hidden.shape[0]
        first = self.mpu.tp_rank * length if self.mpu.sequence_parallel else 0
        types = token_types[:, first : first + length].transpose(0, 1)
        return hidden + F.embedding(types, shared_weight(self.weight, self.mpu)), padding_mask


class WholeLinear(nn.Module):
    """``y = x A^T + b`` with all of A on every tensor-parallel rank.

    Args:
        inputs: width of the input.
        outputs: width of the output.
        config: the architecture, for the initial weights.
        mpu: where this rank sits.
        on_slices: with sequence parallelism, each rank applies it to its own slice of the sequence.
    """

    def __init__(
        self, inputs: int, outputs: int, config: ModelConfig, mpu: ModelParallelUnit, *, on_slices: bool = False
    ) -> None:
        super().__init__()
        self.mpu = mpu
        self.on_slices = on_slices
        self.weight = _whole(outputs, inputs, init_std=config.matrix_std(inputs, outputs))
        self.bias = _whole(outputs, init_std=0.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., inputs] -> [..., outputs]``."""
        if self.on_slices:
            return F.linear(hidden, shared_weight(self.weight, self.mpu), shared_weight(self.bias, self.mpu))
        return F.linear(hidden, self.weight, self.bias)


class Pooler(nn.Module):
    """``tanh(A x + b)`` of each sample's first token.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        beside: what comes out stands beside the hidden states, which later layers read too.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, *, beside: bool) -> None:
        super().__init__()
        self.mpu = mpu
        self.beside = beside
        self.dense = WholeLinear(config.hidden_size, config.hidden_size, config, mpu)

    def forward(self, hidden: Tensor) -> Activations:
        """``[S, B, H] -> [B, H]``, or ``([S, B, H], [B, H])``."""
        first = hidden[0]
        if self.mpu.sequence_parallel:
            # The first rank's slice has it. All ranks work on with it, and its gradient goes to that rank alone.
            first = reduce_from_tensor_parallel(first * (self.mpu.tp_rank == 0), self.mpu)
        pooled = torch.tanh(self.dense(first))
        return (hidden, pooled) if self.beside else pooled


class BinaryHead(WholeLinear):
    """Scores whether a sample's two parts are in the order of the text (0) or swapped (1).

    Args:
        config: the architecture.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__(config.hidden_size, 2, config, mpu)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """``([S, B, H], pooled [B, H]) -> ([S, B, H], scores [B, 2])``."""
        hidden, pooled = inputs
        return hidden, super().forward(pooled)


class ClassificationHead(WholeLinear):
    """Scores of a sequence from what the pooler made of it, with dropout before them.

    Args:
        config: the architecture.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__(config.hidden_size, config.scores_per_sample, config, mpu)
        self.dropout = config.hidden_dropout

    def forward(self, pooled: Tensor) -> Tensor:
        """``[B, H] -> scores [B, C]``."""
        # All tensor-parallel ranks have all of it, so they drop the same.
        return super().forward(F.dropout(pooled, self.dropout, self.training))


class MaskedLmHead(nn.Module):
    """The masked-LM head up to its decoder: ``norm(gelu(A x + b))``, and the bias that the decoder adds.

    The decoder has the word embeddings' weights, so it is a layer of its own, that only shares a module; the bias
    travels to it.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.dense = WholeLinear(config.hidden_size, config.hidden_size, config, mpu, on_slices=True)
        self.layernorm = norm_class(config)(config, config.hidden_size, mpu)
        spec = ShardSpec("vocab", (config.vocab_size,), 0, padded_rows=config.padded_vocab_size(mpu.tp_size))
        self.bias = nn.Parameter(torch.empty(spec.local_shape(mpu.tp_size)))
        self.bias.init_std = 0.0  # type: ignore[attr-defined]
        set_shard_spec(self.bias, spec)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(self, inputs: Activations) -> tuple[Tensor, ...]:
        """``[S, B, H] -> ([S, B, H], bias [V/tp])``; what stands beside the input comes last."""
        hidden, *rest = inputs if isinstance(inputs, tuple) else (inputs,)
        transformed = self.layernorm(F.gelu(self.dense(hidden), approximate=self.approximate))
        # A copy, because ZeRO-3 takes the parameter itself away when its layer is done.
        return transformed, self.bias.clone(), *rest


def decode(embedding: nn.Module, inputs: Activations) -> Activations:
    """Scores of all tokens by the word embeddings, and what stands beside them.

    ``([S, B, H], bias [V/tp], ...) -> [S, B, V/tp]``, or ``([S, B, V/tp], ...)``.
    """
    assert isinstance(embedding, VocabParallelEmbedding)
    assert isinstance(inputs, tuple)
    hidden, bias, *rest = inputs
    logits = embedding.logits(hidden) + bias
    return (logits, *rest) if rest else logits


def _whole(*shape: int, init_std: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.empty(shape))
    parameter.init_std = init_std  # type: ignore[attr-defined]
    return parameter
