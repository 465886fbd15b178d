"""`ShardSpec`: how a parameter is cut over tensor-parallel ranks, as data.

The layer that cuts a parameter writes its spec down, the checkpoint's manifest stores it, and everything that puts
shards together or takes weights apart (merge, reshard, import, export) reads it and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

ShardKind = Literal["replicated", "column", "row", "vocab", "qkv_groups", "gated_pair"]


@dataclass(frozen=True)
class ShardSpec:
    """The cut of one parameter.

    Attributes:
        kind: ``replicated`` (equal on all ranks), ``column`` and ``row`` (a linear layer's outputs or inputs, in
            equal contiguous slices), ``qkv_groups`` (rows of queries, keys and values, ordered group by group: the
            queries of a group's heads, then its key, then its value), ``gated_pair`` (rows of two matrices, first
            all of the gate, then all of the value; each is cut as column) or ``vocab`` (rows of a padded
            vocabulary).
        full_shape: shape of the whole parameter, without vocabulary padding.
        dim: the dimension that is cut; None when replicated.
        padded_rows: vocab: the number of rows with padding, which depends on the tensor-parallel size.
        groups: qkv_groups: how many groups there are, as many as heads of keys and values. A rank holds whole groups
            one after the other. Where there are more ranks than groups, the ranks that share a group hold each their
            slice of its queries, then their slice of its key, then of its value.
        head_rows: qkv_groups: rows of one head.
    """

    kind: ShardKind
    full_shape: tuple[int, ...]
    dim: int | None = None
    padded_rows: int | None = None
    groups: int | None = None
    head_rows: int | None = None

    def local_shape(self, tp_size: int) -> tuple[int, ...]:
        """Shape of one rank's shard."""
        if self.dim is None:
            return self.full_shape
        shape = list(self.full_shape)
        shape[self.dim] = (self.padded_rows or shape[self.dim]) // tp_size
        return tuple(shape)

    def shard(self, full: Tensor, tp_rank: int, tp_size: int) -> Tensor:
        """Cuts one rank's shard out of the whole parameter. Vocabulary padding is filled with zeros.

        Args:
            full: tensor of shape `full_shape`.
            tp_rank: whose shard.
            tp_size: number of shards.
        """
        assert tuple(full.shape) == self.full_shape, (full.shape, self.full_shape)
        if self.dim is None:
            return full
        if self.kind == "gated_pair":
            return torch.cat([half.chunk(tp_size)[tp_rank] for half in full.chunk(2)])
        if self.groups is not None and self.groups < tp_size:
            sharing = tp_size // self.groups
            group = full.chunk(self.groups)[tp_rank // sharing]
            return torch.cat([part.chunk(sharing)[tp_rank % sharing] for part in self._parts(group, 1)])
        if self.padded_rows is not None:
            padding = full.new_zeros(self.padded_rows - full.shape[0], *full.shape[1:])
            full = torch.cat((full, padding))
        return full.chunk(tp_size, self.dim)[tp_rank]

    def unshard(self, shards: Sequence[Tensor]) -> Tensor:
        """Puts the shards of all ranks, in rank order, together again, without vocabulary padding."""
        if self.dim is None:
            return shards[0]
        if self.kind == "gated_pair":
            return torch.cat([half for halves in zip(*(s.chunk(2) for s in shards), strict=True) for half in halves])
        if self.groups is not None and self.groups < len(shards):
            sharing = len(shards) // self.groups
            starts = range(0, len(shards), sharing)
            return torch.cat([self._join_group(shards[start : start + sharing]) for start in starts])
        full = torch.cat(tuple(shards), self.dim)
        return full[: self.full_shape[0]] if self.padded_rows is not None else full

    def _parts(self, group: Tensor, sharing: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, key and value of one group, of which `group` holds one of `sharing` equal slices."""
        assert self.head_rows is not None
        head_rows = self.head_rows // sharing
        query, key, value = torch.split(group, [len(group) - 2 * head_rows, head_rows, head_rows])
        return query, key, value

    def _join_group(self, slices: Sequence[Tensor]) -> Tensor:
        """One group from the slices of the ranks that share it."""
        parts = zip(*(self._parts(piece, len(slices)) for piece in slices), strict=True)
        return torch.cat([piece for pieces in parts for piece in pieces])

    def value_rows(self, full: Tensor) -> Tensor:
        """A view ``[groups, head_rows, ...]`` of the rows of values in a whole ``qkv_groups`` parameter."""
        assert self.groups is not None
        assert self.head_rows is not None
        return full.view(self.groups, -1, *full.shape[1:])[:, -self.head_rows :]

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardSpec:
        """The inverse of `to_json`."""
        return cls(**{**value, "full_shape": tuple(value["full_shape"])})


def set_shard_spec(parameter: nn.Parameter, spec: ShardSpec) -> None:
    """Attaches `spec` to a parameter, with the mark by which DeepSpeed's gradient norm counts shards."""
    parameter.shard_spec = spec  # type: ignore[attr-defined]
    if spec.dim is not None:
        parameter.tensor_model_parallel = True  # type: ignore[attr-defined]


def shard_spec(parameter: nn.Parameter) -> ShardSpec:
    """The spec of a parameter; one that no layer marked is replicated."""
    # ZeRO-3 leaves an empty tensor in place of a parameter and keeps its shape in `ds_shape`.
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    spec = getattr(parameter, "shard_spec", None)
    return spec if isinstance(spec, ShardSpec) else ShardSpec("replicated", shape)
