"""A model by PyTorch alone, as a competent user would write it: GPT, a Llama-style GPT, and BERT.

SDPA (cuDNN first), blocks compiled one by one, the output head and the loss compiled together. Parameters have the
names and the layouts of ours, so that weights can be copied; nothing else is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.data.batch import Batch
from megatron_ds.data.bert_batch import BertBatch

KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class PlainAttention(nn.Module):
    """Attention with grouped heads of keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.groups, self.head_size = config.num_kv_heads, config.head_size
        self.queries = config.num_attention_heads // config.num_kv_heads
        self.is_causal = config.model_type == "gpt"
        width, bias = config.num_attention_heads * config.head_size, not config.disable_bias_linear
        self.query_key_value = nn.Linear(config.hidden_size, width + 2 * self.groups * self.head_size, bias)
        self.dense = nn.Linear(width, config.hidden_size, bias)

    def forward(self, hidden: Tensor, angles: Tensor | None, mask: Tensor | None) -> Tensor:
        """``[B, S, H] -> [B, S, H]``; `angles` are cosines and sines, fp32 ``[2, S, D/2]``."""
        batch, length, _ = hidden.shape
        mixed = self.query_key_value(hidden).view(batch, length, self.groups, self.queries + 2, self.head_size)
        query, key, value = mixed.split([self.queries, 1, 1], 3)
        # [B, S, G, N/G, D] -> [B, N, S, D]
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
        if angles is not None:
            query, key = _rotate(query, angles), _rotate(key, angles)
        context = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.is_causal, enable_gqa=self.queries > 1
        )
        output: Tensor = self.dense(context.transpose(1, 2).flatten(2))
        return output


def _rotate(heads: Tensor, angles: Tensor) -> Tensor:
    cosines, sines = angles
    first, second = heads.float().chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1).to(heads.dtype)


class PlainMLP(nn.Module):
    """GELU, or SwiGLU with the gate's matrix before the value's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = not config.disable_bias_linear
        self.activation = config.activation
        self.dense_h_to_4h = nn.Linear(config.hidden_size, (1 + config.is_gated) * config.ffn_size, bias)
        self.dense_4h_to_h = nn.Linear(config.ffn_size, config.hidden_size, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[B, S, H] -> [B, S, H]``."""
        inner = self.dense_h_to_4h(hidden)
        if self.activation == "swiglu":
            gate, value = inner.chunk(2, -1)
            inner = F.silu(gate) * value
        else:
            inner = F.gelu(inner, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        output: Tensor = self.dense_4h_to_h(inner)
        return output


class PlainBlock(nn.Module):
    """A transformer layer. The norm that ends a post-LN layer stands at the beginning of the next one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_post_ln = config.residual_connection == "post_ln"
        self.input_layernorm = _norm(config)
        self.attention = PlainAttention(config)
        self.post_attention_layernorm = _norm(config)
        self.mlp = PlainMLP(config)

    def forward(self, hidden: Tensor, angles: Tensor | None, mask: Tensor | None) -> Tensor:
        """``[B, S, H] -> [B, S, H]``."""
        if self.is_post_ln:
            hidden = self.input_layernorm(hidden)
            hidden = self.post_attention_layernorm(hidden + self.attention(hidden, angles, mask))
            return hidden + self.mlp(hidden)
        hidden = hidden + self.attention(self.input_layernorm(hidden), angles, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class PlainModel(nn.Module):
    """The whole model with its loss.

    Args:
        config: the architecture, with its vocabulary size known.
        compiled: blocks, and the head with the loss, go through torch.compile.

    Raises:
        ValueError: the architecture has what this model hasn't.
    """

    def __init__(self, config: ModelConfig, *, compiled: bool) -> None:
        super().__init__()
        if reason := unsupported(config):
            raise ValueError(reason)
        self.config, self.compiled = config, compiled
        self.word_embeddings = nn.Embedding(config.padded_vocab_size(1), config.hidden_size)
        if config.has_learned_positions:
            self.position_embeddings = nn.Embedding(config.num_positions, config.hidden_size)
        self.layers = nn.ModuleList(PlainBlock(config) for _ in range(config.num_layers))
        self.final_layernorm = _norm(config)
        if config.untie_embeddings_and_output_weights:
            self.lm_head = nn.Linear(config.hidden_size, config.padded_vocab_size(1), bias=False)
        if config.model_type == "bert":
            self.tokentype_embeddings = nn.Embedding(config.token_types, config.hidden_size)
            self.pooler = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.hidden_size)})
            self.binary_head = nn.Linear(config.hidden_size, 2)
            self.lm_head = _MaskedLmHead(config)
        self.token_loss: Callable[..., Tensor] = _token_loss
        if compiled:
            self.token_loss = torch.compile(_token_loss)
            for block in self.layers:
                block.compile()

    def forward(self, batch: Batch | BertBatch, label_count: float, sample_count: int) -> Tensor:
        """A micro-batch's share of the loss on the global batch.

        Args:
            batch: on the model's device.
            label_count: tokens of the global batch that are predicted.
            sample_count: samples of the global batch.
        """
        with sdpa_kernel(KERNELS, set_priority=True):
            hidden = self._hidden(batch)
        weights = batch.loss_mask / label_count
        vocab_size = self.config.vocab_size
        if not isinstance(batch, BertBatch):
            head = (
                self.lm_head.weight if self.config.untie_embeddings_and_output_weights else self.word_embeddings.weight
            )
            return self.token_loss(hidden, head, None, batch.labels, weights, vocab_size)
        pooled = torch.tanh(self.pooler["dense"](hidden[:, 0]))
        loss = self.token_loss(
            self.lm_head(hidden), self.word_embeddings.weight, self.lm_head.bias, batch.labels, weights, vocab_size
        )
        order = F.cross_entropy(self.binary_head(pooled).float(), batch.sop_labels, reduction="sum")
        return loss + order / sample_count

    def _hidden(self, batch: Batch | BertBatch) -> Tensor:
        """The stack's output, ``[B, S, H]``."""
        hidden = self.word_embeddings(batch.tokens)
        mask = angles = None
        if isinstance(batch, BertBatch):
            hidden = hidden + self.tokentype_embeddings(batch.token_types)
            mask = batch.padding_mask[:, None, None, :].bool()
        if self.config.has_learned_positions:
            hidden = hidden + self.position_embeddings.weight[: hidden.shape[1]]
        else:
            angles = self._angles(hidden)
        for block in self.layers:
            hidden = block(hidden, angles, mask)
        normed: Tensor = self.final_layernorm(hidden)
        return normed

    def _angles(self, hidden: Tensor) -> Tensor:
        """Cosines and sines of rotary embeddings, fp32 ``[2, S, D/2]``."""
        size = self.config.head_size
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=hidden.device) / size
        places = torch.arange(hidden.shape[1], dtype=torch.float32, device=hidden.device)
        turns = torch.outer(places, 1.0 / self.config.rotary_base**powers)
        return torch.stack((turns.cos(), turns.sin()))


class _MaskedLmHead(nn.Module):
    """BERT's head up to its decoder, whose bias it holds."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layernorm = _norm(config)
        self.bias = nn.Parameter(torch.zeros(config.padded_vocab_size(1)))

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.layernorm(F.gelu(self.dense(hidden)))
        return output


def _norm(config: ModelConfig) -> nn.Module:
    kind: Any = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
    norm: nn.Module = kind(config.hidden_size, eps=config.layernorm_epsilon)
    return norm


def _token_loss(
    hidden: Tensor, head: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor, vocab_size: int
) -> Tensor:
    """The weighted sum of the tokens' losses; logits beyond the vocabulary are padding."""
    logits = F.linear(hidden, head, bias)[..., :vocab_size].float()
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def unsupported(config: ModelConfig) -> str | None:
    """Why `PlainModel` can't be this architecture; None when it can."""
    wanted = {
        "residual_connection": ("pre_ln", "post_ln"),
        "activation": ("gelu_tanh", "gelu", "swiglu"),
        "position_embedding_type": ("learned_absolute", "rope"),
    }
    for name, values in wanted.items():
        if (value := getattr(config, name)) not in values:
            return f"the plain model has no {name}={value}"
    if config.window_size or config.qk_layernorm or config.use_rope_scaling:
        return "the plain model has no attention window, norms of queries or scaled rotary embeddings"
    return None
