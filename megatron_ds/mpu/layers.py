"""Linear and embedding layers cut over tensor-parallel ranks (Shoeybi et al. 2019, section 3).

Weights are allocated without values: `megatron_ds.models.init` fills them by their canonical names, so that they do
not depend on the layout. The standard deviation that a weight asks for is written on it as `init_std`.

With sequence parallelism, inputs of column-parallel layers and outputs of row-parallel ones and of the embedding hold
this rank's slice of the sequence: S below is then S/tp on that side.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_ds.mpu.mappings import (
    enter_split_layers,
    gather_from_tensor_parallel,
    leave_split_layers,
    scatter_to_tensor_parallel,
    shared_weight,
)
from megatron_ds.mpu.shard_spec import ShardKind, ShardSpec, set_shard_spec
from megatron_ds.mpu.unit import ModelParallelUnit


def _parameter(spec: ShardSpec, tp_size: int, init_std: float) -> nn.Parameter:
    """An uninitialised parameter that knows its cut and the spread of its initial values (0 means zeros)."""
    parameter = nn.Parameter(torch.empty(spec.local_shape(tp_size)))
    parameter.init_std = init_std  # type: ignore[attr-defined]
    set_shard_spec(parameter, spec)
    return parameter


class ColumnParallelLinear(nn.Module):
    """``y = x A^T + b`` with the rows of A (the outputs) split over the tensor-parallel ranks.

    Args:
        input_size: width of the input, replicated.
        output_size: width of the whole output.
        mpu: where this rank sits.
        init_std: standard deviation of the initial weights.
        bias: adds a bias, cut as the outputs.
        gather_output: returns the whole output on every rank instead of this rank's slice.
        kind: what the rows mean: ``gated_pair`` for the two matrices of a gated MLP, ``qkv_groups`` for queries, keys
            and values. See `ShardSpec`.
        groups: qkv_groups: heads of keys and values.
        head_rows: qkv_groups: rows of one head.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        mpu: ModelParallelUnit,
        *,
        init_std: float,
        bias: bool = True,
        gather_output: bool = False,
        kind: ShardKind = "column",
        groups: int | None = None,
        head_rows: int | None = None,
    ) -> None:
        super().__init__()
        self.mpu = mpu
        self.gather_output = gather_output
        spec = ShardSpec(kind, (output_size, input_size), 0, groups=groups, head_rows=head_rows)
        self.weight = _parameter(spec, mpu.tp_size, init_std)
        self.bias = _parameter(replace(spec, full_shape=(output_size,)), mpu.tp_size, 0.0) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., input_size] -> [..., output_size/tp]``, or ``[..., output_size]`` with `gather_output`."""
        output = F.linear(enter_split_layers(hidden, self.mpu), self.weight, self.bias)
        return gather_from_tensor_parallel(output, self.mpu) if self.gather_output else output


class RowParallelLinear(nn.Module):
    """``y = x A^T + b`` with the columns of A (the inputs) split over the tensor-parallel ranks.

    Args:
        input_size: width of the whole input.
        output_size: width of the output, replicated.
        mpu: where this rank sits.
        init_std: standard deviation of the initial weights.
        bias: adds a bias, replicated, after the sum over ranks.
        input_is_parallel: the input is this rank's slice already, as a column-parallel layer leaves it.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        mpu: ModelParallelUnit,
        *,
        init_std: float,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        self.mpu = mpu
        self.input_is_parallel = input_is_parallel
        self.weight = _parameter(ShardSpec("row", (output_size, input_size), 1), mpu.tp_size, init_std)
        self.bias = _parameter(ShardSpec("replicated", (output_size,)), mpu.tp_size, 0.0) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., input_size/tp] -> [..., output_size]``; the input is whole without `input_is_parallel`."""
        if not self.input_is_parallel:
            hidden = scatter_to_tensor_parallel(hidden, self.mpu)
        # Each rank holds a partial sum over its slice of the input; the bias must be added once, after the sum.
        output = leave_split_layers(F.linear(hidden, self.weight), self.mpu)
        return output if self.bias is None else output + shared_weight(self.bias, self.mpu)


class VocabParallelEmbedding(nn.Module):
    """Word embeddings with the vocabulary split over the tensor-parallel ranks, usable as output head too.

    Args:
        vocab_size: token ids in use.
        padded_vocab_size: rows with padding, a multiple of the tensor-parallel size. Padding rows are zero at the
            start and never receive a gradient.
        hidden_size: width of an embedding.
        mpu: where this rank sits.
        init_std: standard deviation of the initial weights.
    """

    def __init__(
        self, vocab_size: int, padded_vocab_size: int, hidden_size: int, mpu: ModelParallelUnit, *, init_std: float
    ) -> None:
        super().__init__()
        self.mpu = mpu
        spec = ShardSpec("vocab", (vocab_size, hidden_size), 0, padded_rows=padded_vocab_size)
        self.weight = _parameter(spec, mpu.tp_size, init_std)
        self.rows_per_rank = padded_vocab_size // mpu.tp_size

    def forward(self, tokens: Tensor) -> Tensor:
        """Looks tokens up: ``[B, S] -> [S, B, H]``. The sequence comes first from here to the head."""
        tokens = tokens.transpose(0, 1)
        if self.mpu.tp_size == 1:
            return F.embedding(tokens, self.weight)
        local = tokens - self.mpu.tp_rank * self.rows_per_rank
        elsewhere = (local < 0) | (local >= self.rows_per_rank)
        embeddings = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        # Exactly one rank has each token's row; the others contribute zeros to the sum.
        embeddings = embeddings.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return leave_split_layers(embeddings, self.mpu)

    def logits(self, hidden: Tensor) -> Tensor:
        """This rank's slice of the scores of all tokens: ``[S, B, H] -> [S, B, V/tp]``."""
        return F.linear(enter_split_layers(hidden, self.mpu), self.weight)
