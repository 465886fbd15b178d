"""How Megatron's versions and forks order the rows of fused matrices, and how they become ours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_ds.mpu import ShardSpec


@dataclass(frozen=True)
class RowOrder:
    """The order of rows in one rank's shard of a fused matrix or bias.

    ``query_key_value``, with N heads of width D on a rank, by checkpoint version: 0 is ``[3, N, D]``, 1 is
    ``[N, D, 3]``, 2 and later ``[N, 3, D]`` or, with fewer heads of keys, group by group, as ours. Source: NVIDIA
    Megatron-LM, megatron/checkpointing.py, `fix_query_key_value_ordering`.

    Gated MLPs: Megatron-LM and we have the gate's rows first; BLOOM's fork the value's. Source: bigscience
    Megatron-DeepSpeed, megatron/model/glu_activations.py.

    Attributes:
        checkpoint_version: as the file states it; 0 where it states none.
        value_first: of a gated pair, the value's rows come first.
    """

    checkpoint_version: float = 3.0
    value_first: bool = False

    def to_ours(self, shard: Tensor, spec: ShardSpec) -> Tensor:
        """One rank's shard in our order.

        Args:
            shard: theirs.
            spec: of the whole parameter.
        """
        if spec.kind == "gated_pair":
            return self._gated(shard)
        if spec.kind != "qkv_groups" or self.checkpoint_version >= 2:
            return shard
        rest = shard.shape[1:]
        if self.checkpoint_version < 1:
            return shard.view(3, -1, _width(spec), *rest).transpose(0, 1).reshape(shard.shape)
        return shard.view(-1, _width(spec), 3, *rest).transpose(1, 2).reshape(shard.shape)

    def to_theirs(self, shard: Tensor, spec: ShardSpec) -> Tensor:
        """The inverse of `to_ours`."""
        if spec.kind == "gated_pair":
            return self._gated(shard)
        if spec.kind != "qkv_groups" or self.checkpoint_version >= 2:
            return shard
        heads = shard.view(-1, 3, _width(spec), *shard.shape[1:])
        return heads.transpose(*((0, 1) if self.checkpoint_version < 1 else (1, 2))).reshape(shard.shape)

    def _gated(self, shard: Tensor) -> Tensor:
        return torch.cat(shard.chunk(2)[::-1]) if self.value_first else shard


def _width(spec: ShardSpec) -> int:
    assert spec.head_rows is not None
    return spec.head_rows
