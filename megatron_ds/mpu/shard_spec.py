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

ShardKind = Literal["replicated", "column", "row", "vocab", "qkv_groups"]


@dataclass(frozen=True)
class ShardSpec:
    """The cut of one parameter.

    Attributes:
        kind: ``replicated`` (equal on all ranks), ``column`` and ``row`` (a linear layer's outputs or inputs, in
            equal contiguous slices), ``qkv_groups`` (as column; rows are ordered head by head, each head's query,
            key and value together, so that contiguous slices hold whole heads) or ``vocab`` (rows of a padded
            vocabulary).
        full_shape: shape of the whole parameter, without vocabulary padding.
        dim: the dimension that is cut; None when replicated.
        padded_rows: vocab: the number of rows with padding, which depends on the tensor-parallel size.
    """

    kind: ShardKind
    full_shape: tuple[int, ...]
    dim: int | None = None
    padded_rows: int | None = None

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
        if self.padded_rows is not None:
            padding = full.new_zeros(self.padded_rows - full.shape[0], *full.shape[1:])
            full = torch.cat((full, padding))
        return full.chunk(tp_size, self.dim)[tp_rank]

    def unshard(self, shards: Sequence[Tensor]) -> Tensor:
        """Puts the shards of all ranks, in rank order, together again, without vocabulary padding."""
        if self.dim is None:
            return shards[0]
        full = torch.cat(tuple(shards), self.dim)
        return full[: self.full_shape[0]] if self.padded_rows is not None else full

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
