"""Self-attention, causal or in both directions, with the heads split over the tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import ConfigError, Problem
from megatron_ds.models.flex import LEAST_HEAD_SIZE, FlexAttention
from megatron_ds.models.norms import norm_class
from megatron_ds.models.positions import alibi_slopes, document_positions, rotary_frequencies, rotate
from megatron_ds.models.sdpa import SdpaAttention
from megatron_ds.mpu import (
    ColumnParallelLinear,
    ModelParallelUnit,
    RowParallelLinear,
    copy_to_tensor_parallel,
    gather_from_tensor_parallel,
)


class AttentionScheme:
    """What attention knows of positions: which tokens a token attends to, how far away they are, and their angles.

    One object for all layers of a rank, so that what depends on the length alone is worked out once.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        reset_position_ids: angles count from 0 in each document.
        reset_attention_mask: tokens attend to their own document only.
        backend: ``--attention-backend``; or ``inference``, which needs no time for a length that was not there before.
    """

    def __init__(
        self,
        config: ModelConfig,
        mpu: ModelParallelUnit,
        *,
        reset_position_ids: bool = False,
        reset_attention_mask: bool = False,
        backend: str = "auto",
    ) -> None:
        self.config = config
        self.has_rope = config.position_embedding_type == "rope"
        self.has_alibi = config.position_embedding_type == "alibi"
        self.restarts_angles = reset_position_ids and self.has_rope
        self.separates_documents = reset_attention_mask
        heads = config.num_attention_heads // mpu.tp_size
        self._heads = slice(mpu.tp_rank * heads, (mpu.tp_rank + 1) * heads)
        self.kernel = self._choose_kernel(backend, mpu.device)
        self._angles: tuple[Tensor, Tensor] | None = None
        self._mask: Tensor | None = None

    def _choose_kernel(self, backend: str, device: torch.device) -> FlexAttention | SdpaAttention:
        config = self.config
        is_masked = self.has_alibi or config.window_size is not None or self.masks_by_ids
        if config.is_bidirectional:
            # No more than which tokens are padding: written out, that is a mask any kernel of SDPA takes.
            return SdpaAttention(backend, device)
        # Where flex attention can't be used, the mask is written out.
        fits_flex = config.attention_dropout == 0 and config.head_size >= LEAST_HEAD_SIZE
        prefers_flex = device.type == "cuda" and is_masked and fits_flex
        if backend == "flex" or (backend == "auto" and prefers_flex):
            slopes = alibi_slopes(config.num_attention_heads)[self._heads].to(device) if self.has_alibi else None
            return FlexAttention(config.window_size, slopes, has_prefix=config.prefix_lm)
        return SdpaAttention(backend, device)

    @property
    def masks_by_ids(self) -> bool:
        """Whether ids decide which tokens a token attends to."""
        return self.separates_documents or self.config.prefix_lm or self.config.is_bidirectional

    @property
    def reads_documents(self) -> bool:
        """Whether layers need the ids of documents, of a prefix and the rest, or of text and padding."""
        return self.restarts_angles or self.masks_by_ids

    def angles(self, query: Tensor, document_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rotary embeddings, each fp32 ``[1 or B, 1, S, R/2]``.

        Args:
            query: ``[B, N/tp, S, D]``, for the length and the device.
            document_ids: ``[B, S]``, or None where there are none.
        """
        sequence, device = query.shape[2], query.device
        if self._angles is None or self._angles[0].shape[2] < sequence or self._angles[0].device != device:
            turned = torch.arange(sequence, device=device).unsqueeze(1) * rotary_frequencies(self.config, device)
            self._angles = turned.cos()[None, None], turned.sin()[None, None]
        cosines, sines = self._angles
        if self.restarts_angles and document_ids is not None:
            positions = document_positions(document_ids)
            return cosines[0, 0][positions].unsqueeze(1), sines[0, 0][positions].unsqueeze(1)
        return cosines[:, :, :sequence], sines[:, :, :sequence]

    def kernel_in_use(self, query: Tensor, key: Tensor) -> str | None:
        """The kernel that a training step uses for such heads, for the start-up message; None when there is none.

        Args:
            query: ``[B, N/tp, S, D]``; only its dtype, shape and device matter.
            key: ``[B, G/tp or 1, S, D]``.
        """
        if isinstance(self.kernel, FlexAttention):
            return "flex"
        if query.device.type != "cuda":
            return "SDPA on CPU"
        ids = torch.zeros(query.shape[0], query.shape[2], dtype=torch.int32, device=query.device)
        mask = self.mask(query, ids if self.masks_by_ids else None)
        name = self.kernel.kernel_for(query, key, mask, self.config.attention_dropout)
        return None if name is None else f"SDPA {name}" + (" with a written-out mask" if mask is not None else "")

    def mask(self, query: Tensor, document_ids: Tensor | None) -> Tensor | None:
        """What is added to scores, or which of them count; the one place that decides on it.

        Args:
            query: ``[B, N/tp, S, D]``, for length, dtype and device.
            document_ids: ``[B, S]``, or None where there are none; of a prefix-LM 0 in the prefix; of a model that sees
                both directions the padding mask.

        Returns:
            None where all tokens before a token count alike; else bool (true: counts) or, with ALiBi, numbers in
            the query's dtype, ``[1 or B, 1 or N/tp, S, S]``.
        """
        if self.config.is_bidirectional and document_ids is not None:
            return same_ids(document_ids)
        if self.config.prefix_lm and document_ids is not None:
            return self._prefix_mask(query, document_ids)
        mask = self._mask_of_length(query)
        if not self.separates_documents or document_ids is None:
            return mask
        within = document_mask(document_ids)
        if mask is None:
            return within
        return mask & within if mask.dtype == torch.bool else mask.masked_fill(~within, -torch.inf)

    def _mask_of_length(self, query: Tensor) -> Tensor | None:
        """The part of the mask that is the same for all samples of a length."""
        if not self.has_alibi and self.config.window_size is None:
            return None
        known, sequence = self._mask, query.shape[2]
        fits = known is not None and known.shape[-1] == sequence and known.device == query.device
        if not fits or (self.has_alibi and known is not None and known.dtype != query.dtype):
            self._mask = self._new_mask(sequence, query.dtype, query.device)
        return self._mask

    def _new_mask(self, sequence: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        distance = _distances(sequence, device)
        counts = (distance >= 0) & (distance < (self.config.window_size or sequence))
        return self._bias(distance, dtype).masked_fill(~counts, -torch.inf) if self.has_alibi else counts[None, None]

    def _prefix_mask(self, query: Tensor, prefix_ids: Tensor) -> Tensor:
        distance = _distances(query.shape[2], query.device)
        counts = (distance >= 0) | (prefix_ids == 0)[:, None, None]
        return self._bias(distance, query.dtype).masked_fill(~counts, -torch.inf) if self.has_alibi else counts

    def _bias(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """ALiBi's part of the scores, ``[1, N/tp, S, S]``, whether they count or not."""
        slopes = alibi_slopes(self.config.num_attention_heads)[self._heads].to(distance.device)
        return (-slopes[:, None, None] * distance.abs()).to(dtype).unsqueeze(0)


def _distances(sequence: int, device: torch.device) -> Tensor:
    """How many tokens a key lies before a query, ``[S, S]``."""
    places = torch.arange(sequence, device=device)
    return places.unsqueeze(1) - places


CoreAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class ParallelAttention(nn.Module):
    """Attention through PyTorch's `scaled_dot_product_attention`.

    Heads of keys and values may serve several attention heads each (Ainslie et al. 2023, "GQA"). Where there are more
    ranks than those, the ranks that share one hold slices of its weights and gather what comes out of them.

    Args:
        config: the architecture.
        mpu: where this rank sits; each rank has ``num_attention_heads / tp_size`` heads.
        scheme: what is known of positions.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, scheme: AttentionScheme) -> None:
        super().__init__()
        self.mpu = mpu
        self.scheme = scheme
        self.interleaved = config.rotary_interleaved
        self.heads_per_rank = config.num_attention_heads // mpu.tp_size
        self.num_kv_heads = config.num_kv_heads
        self.kv_heads_per_rank = max(1, config.num_kv_heads // mpu.tp_size)
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        inputs, width = config.hidden_size, config.num_attention_heads * config.head_size
        self.query_key_value = ColumnParallelLinear(
            inputs,
            width + 2 * config.num_kv_heads * config.head_size,
            mpu,
            init_std=config.matrix_std(inputs, width),
            bias=config.add_qkv_bias or not config.disable_bias_linear,
            kind="qkv_groups",
            groups=config.num_kv_heads,
            head_rows=config.head_size,
        )
        self.query_key_value.weight.init_value_gain = config.branch_init_gain  # type: ignore[attr-defined]
        if config.qk_layernorm:
            # Each rank normalises its own heads.
            norm = norm_class(config)
            self.q_layernorm = norm(config, config.head_size, mpu, sees_own_share=True)
            self.k_layernorm = norm(config, config.head_size, mpu, sees_own_share=True)
        self.has_norms = config.qk_layernorm
        self.dense = RowParallelLinear(
            width, inputs, mpu, init_std=config.output_std(width), bias=not config.disable_bias_linear
        )

    def forward(self, hidden: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """``[S, B, H] -> [S, B, H]``.

        Args:
            hidden: the residual stream.
            document_ids: ``[B, S]``, growing along S, where the scheme reads them.
        """
        query, key, value = self._heads(self.query_key_value(hidden))
        if self.has_norms:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self.scheme.has_rope:
            angles = self.scheme.angles(query, document_ids)
            query = rotate(query, angles, interleaved=self.interleaved)
            key = rotate(key, angles, interleaved=self.interleaved)
        context = self._attend(query, key, value, document_ids)
        # [B, N/tp, S, D] -> [S, B, N D/tp]
        context = context.permute(2, 0, 1, 3).flatten(2)
        output: Tensor = self.dense(context)
        return output

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[B, N/tp, S, D]``, keys and values ``[B, G/tp or 1, S, D]``, from ``[S, B, (N + 2 G) D/tp]``."""
        if self.num_kv_heads < self.mpu.tp_size:
            return self._heads_of_shared_group(mixed)
        queries = self.heads_per_rank // self.kv_heads_per_rank
        # [S, B, G/tp, N/G + 2, D] -> [B, G/tp, N/G + 2, S, D]
        groups = mixed.view(*mixed.shape[:2], self.kv_heads_per_rank, queries + 2, self.head_size).permute(
            1, 2, 3, 0, 4
        )
        query, key, value = torch.split(groups, [queries, 1, 1], 2)
        return query.flatten(1, 2), key.squeeze(2), value.squeeze(2)

    def _heads_of_shared_group(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same where several ranks share a head of keys and values, of which each works out a slice."""
        sequence, batch, _ = mixed.shape
        sharing = self.mpu.tp_size // self.num_kv_heads
        width = self.heads_per_rank * self.head_size
        query, slices = torch.split(mixed, [width, 2 * self.head_size // sharing], -1)
        # All ranks' slices of all groups; the gradients of a slice come from all ranks that use it.
        everyone = copy_to_tensor_parallel(gather_from_tensor_parallel(slices, self.mpu), self.mpu)
        group = self.mpu.tp_rank // sharing
        # [S, B, G, tp/G, 2, D G/tp] -> [2, B, S, tp/G, D G/tp] of the own group
        own = everyone.view(sequence, batch, self.num_kv_heads, sharing, 2, -1)[:, :, group].permute(3, 1, 0, 2, 4)
        key, value = own.flatten(3).unsqueeze(2).unbind(0)
        query = query.view(sequence, batch, self.heads_per_rank, self.head_size).permute(1, 2, 0, 3)
        return query, key, value

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, document_ids: Tensor | None) -> Tensor:
        kernel = self.scheme.kernel
        if isinstance(kernel, FlexAttention):
            return kernel(query, key, value, document_ids if self.scheme.masks_by_ids else None)
        mask = self.scheme.mask(query, document_ids)
        if not (self.training and self.dropout > 0):
            return kernel(query, key, value, mask)
        # Each rank drops probabilities of its own heads, so the masks must differ over the tensor-parallel group.
        with self.mpu.rng.fork():
            return kernel(query, key, value, mask, self.dropout)

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
    return same_ids(document_ids).tril_()


def same_ids(ids: Tensor) -> Tensor:
    """Which tokens have the same id, ``[B, S] -> [B, 1, S, S]``."""
    return (ids.unsqueeze(2) == ids.unsqueeze(1)).unsqueeze(1)


def check_kernel(config: ModelConfig, mpu: ModelParallelUnit, scheme: AttentionScheme, like: Tensor) -> str:
    """The kernel of attention, for the start-up message.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        scheme: as the layers have it.
        like: of the dtype and on the device that layers compute with, ``[B, …]`` for a micro-batch of B.

    Raises:
        ConfigError: no kernel that may be used takes these shapes.
    """
    sizes = [max(1, heads // mpu.tp_size) for heads in (config.num_attention_heads, config.num_kv_heads)]
    query, key = (like.new_empty(len(like), heads, config.seq_length, config.head_size) for heads in sizes)
    name = scheme.kernel_in_use(query, key)
    if name is None:
        raise ConfigError(
            Problem(
                f"no kernel that --attention-backend allows can compute attention of {sizes[0]} heads of "
                f"{config.head_size} over {config.seq_length} tokens in {like.dtype}",
                advice="use --attention-backend auto",
            )
        )
    return name
