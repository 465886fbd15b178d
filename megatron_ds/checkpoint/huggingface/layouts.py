"""How a parameter lies in our tensors and in theirs: each layout is a pair of functions, one for each direction.

Ours is always one tensor, theirs may be several. Queries, keys and values are ours in one matrix, group by group: the
queries of a group's heads, then its key, then its value (`megatron_ds.mpu.ShardSpec`). N heads, G heads of keys and
values, D numbers in a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig


@dataclass(frozen=True)
class Layout:
    """One way to lay a parameter out.

    Attributes:
        split: our tensor as theirs, in the order of their names.
        join: the inverse.
    """

    split: Callable[[Tensor, ModelConfig], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor], ModelConfig], Tensor]


def _to_halves(heads: Tensor, model: ModelConfig) -> Tensor:
    """Heads ``[N, D, ...]`` for rotary embeddings that pair one number from each half, as all of theirs do.

    Rotating neighbours (``--rotary-interleaved``) gives the same scores as rotating halves when the rows of queries
    and keys are put in another order: first all even ones of the rotated width, then all odd ones.
    """
    if not model.rotary_interleaved:
        return heads
    turned, rest = heads[:, : model.rotary_size], heads[:, model.rotary_size :]
    return torch.cat((turned[:, 0::2], turned[:, 1::2], rest), 1)


def _to_neighbours(heads: Tensor, model: ModelConfig) -> Tensor:
    """The inverse of `_to_halves`."""
    if not model.rotary_interleaved:
        return heads
    turned, rest = heads[:, : model.rotary_size], heads[:, model.rotary_size :]
    return torch.cat((torch.stack(turned.chunk(2, 1), 2).flatten(1, 2), rest), 1)


def _heads(ours: Tensor, model: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Queries ``[N, D, ...]``, keys and values ``[G, D, ...]`` of our fused ``[(N + 2 G) D, ...]``."""
    groups = ours.view(model.num_kv_heads, -1, model.head_size, *ours.shape[1:])
    query, key, value = groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]
    return _to_halves(query, model), _to_halves(key, model), value


def _fused(query: Tensor, key: Tensor, value: Tensor, model: ModelConfig) -> Tensor:
    """The inverse of `_heads`."""
    groups = model.num_kv_heads
    query = _to_neighbours(query, model).view(groups, -1, *query.shape[1:])
    return torch.cat((query, _to_neighbours(key, model).unsqueeze(1), value.unsqueeze(1)), 1).flatten(0, 2)


def _split_qkv(ours: Tensor, model: ModelConfig) -> list[Tensor]:
    return [heads.flatten(0, 1) for heads in _heads(ours, model)]


def _join_qkv(theirs: Sequence[Tensor], model: ModelConfig) -> Tensor:
    query, key, value = (part.view(-1, model.head_size, *part.shape[1:]) for part in theirs)
    return _fused(query, key, value, model)


def _split_by_head(ours: Tensor, model: ModelConfig) -> list[Tensor]:
    if not model.rotary_interleaved:
        return [ours]
    query, key, value = _heads(ours, model)
    return [torch.stack((query, key, value), 1).flatten(0, 2)]


def _join_by_head(theirs: Sequence[Tensor], model: ModelConfig) -> Tensor:
    if not model.rotary_interleaved:
        return theirs[0]
    fused = theirs[0].view(model.num_kv_heads, 3, model.head_size, *theirs[0].shape[1:])
    query, key, value = fused.unbind(1)
    return _fused(query, key, value, model)


SAME = Layout(lambda ours, _: [ours], lambda theirs, _: theirs[0])

# [out, in] -> [in, out]; a bias stays.
TRANSPOSED = Layout(lambda ours, _: [ours.t()], lambda theirs, _: theirs[0].t())

# Three matrices: queries, keys, values.
QKV_APART = Layout(_split_qkv, _join_qkv)

# One matrix, head by head: its query, its key, its value. Ours, where every head has its own key and value.
QKV_BY_HEAD = Layout(_split_by_head, _join_by_head)

# One matrix [in, out]: the queries of all heads, then the keys, then the values.
QKV_IN_THIRDS = Layout(
    lambda ours, model: [torch.cat(_split_qkv(ours, model)).t()],
    lambda theirs, model: _join_qkv(theirs[0].t().chunk(3), model),
)

# The weights of a norm over a head's width: in the order of queries and keys.
HEAD_NORM = Layout(
    lambda ours, model: [_to_halves(ours.unsqueeze(0), model)[0]],
    lambda theirs, model: _to_neighbours(theirs[0].unsqueeze(0), model)[0],
)

# Two matrices: gate and value.
GATE_AND_VALUE = Layout(lambda ours, _: ours.chunk(2), lambda theirs, _: torch.cat(tuple(theirs)))


def after_unused_rows(count: int) -> Layout:
    """A table that begins with rows which nothing reads; ours has none, and they are written as zeros."""
    return Layout(
        lambda ours, _: [torch.cat((ours.new_zeros(count, *ours.shape[1:]), ours))],
        lambda theirs, _: theirs[0][count:],
    )
