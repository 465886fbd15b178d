"""`ShardSpec`: cutting and joining are inverse to each other, and survive the manifest."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from megatron_ds.mpu import ShardSpec, set_shard_spec, shard_spec
from tests.mpu.serial import TP_SIZES, numbers

SPECS = [
    ShardSpec("replicated", (6, 4)),
    ShardSpec("column", (8, 4), 0),
    ShardSpec("column", (8,), 0),
    ShardSpec("qkv_groups", (24, 4), 0),
    # Eight heads of width 4 in two groups: (4 + 2) x 4 rows in each. Four ranks share a group by two.
    ShardSpec("qkv_groups", (48, 3), 0, groups=2, head_rows=4),
    ShardSpec("qkv_groups", (24,), 0, groups=1, head_rows=4),
    ShardSpec("gated_pair", (16, 3), 0),
    ShardSpec("gated_pair", (16,), 0),
    ShardSpec("row", (4, 8), 1),
    ShardSpec("vocab", (259, 4), 0, padded_rows=512),
    ShardSpec("vocab", (8, 4), 0, padded_rows=8),
]


def _name(spec: ShardSpec) -> str:
    return f"{spec.kind}-{'x'.join(map(str, spec.full_shape))}-{spec.padded_rows or spec.groups}"


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("spec", SPECS, ids=_name)
def test_unshard_of_shards_is_the_whole_parameter(spec: ShardSpec, tp_size: int) -> None:
    full = numbers(1, *spec.full_shape)
    shards = [spec.shard(full, rank, tp_size) for rank in range(tp_size)]
    assert {tuple(shard.shape) for shard in shards} == {spec.local_shape(tp_size)}
    if spec.dim is not None:
        assert shards[0].shape[spec.dim] * tp_size == (spec.padded_rows or full.shape[spec.dim])
    assert torch.equal(spec.unshard(shards), full)


def test_shard_of_vocabulary_fills_padding_with_zeros() -> None:
    spec = ShardSpec("vocab", (259, 4), 0, padded_rows=512)
    shards = [spec.shard(torch.ones(259, 4), rank, 4) for rank in range(4)]
    assert [int(shard[:, 0].sum()) for shard in shards] == [128, 128, 3, 0]


def test_shard_of_qkv_groups_holds_whole_heads() -> None:
    heads, width = 4, 2
    # Row r of head h is marked (h, q/k/v): query, key and value of a head stand together.
    labels = torch.tensor([[h, part] for h in range(heads) for part in range(3) for _ in range(width)])
    spec = ShardSpec("qkv_groups", tuple(labels.shape), 0)
    second = spec.shard(labels, 1, 2)
    assert second[:, 0].unique().tolist() == [2, 3]
    assert second.view(2, 3, width, 2)[..., 1].unique(dim=0).tolist() == [[[0, 0], [1, 1], [2, 2]]]


def _labels(groups: int, queries: int, width: int) -> torch.Tensor:
    """A number for each row that tells its group, its part (queries, then key 8, then value 9) and its place there."""
    parts = [[*range(queries), 8, 9] for _ in range(groups)]
    return torch.tensor([100 * g + 10 * p + w for g, own in enumerate(parts) for p in own for w in range(width)])


def test_shard_of_groups_shared_by_ranks_holds_slices_of_queries_key_and_value() -> None:
    full = _labels(groups=2, queries=4, width=2)
    spec = ShardSpec("qkv_groups", tuple(full.shape), 0, groups=2, head_rows=2)
    # Of four ranks the third and the fourth share the second group.
    assert spec.shard(full, 2, 4).tolist() == [100, 101, 110, 111, 180, 190]
    assert spec.shard(full, 3, 4).tolist() == [120, 121, 130, 131, 181, 191]
    assert spec.shard(full, 1, 2).tolist() == full[12:].tolist()


def test_shard_of_gated_pair_holds_the_same_columns_of_gate_and_value() -> None:
    spec = ShardSpec("gated_pair", (8,), 0)
    assert spec.shard(torch.arange(8), 1, 2).tolist() == [2, 3, 6, 7]


def test_value_rows_are_those_of_values() -> None:
    full = _labels(groups=2, queries=3, width=2)
    spec = ShardSpec("qkv_groups", tuple(full.shape), 0, groups=2, head_rows=2)
    assert spec.value_rows(full).tolist() == [[90, 91], [190, 191]]


def test_unshard_after_another_padding_is_the_same_parameter() -> None:
    full = numbers(1, 259, 4)
    for padded_rows, tp_size in ((260, 1), (384, 1), (384, 2), (512, 4)):
        spec = ShardSpec("vocab", (259, 4), 0, padded_rows=padded_rows)
        assert torch.equal(spec.unshard([spec.shard(full, rank, tp_size) for rank in range(tp_size)]), full)


@pytest.mark.parametrize("spec", SPECS, ids=_name)
def test_spec_from_json_is_the_spec_that_was_written(spec: ShardSpec) -> None:
    assert ShardSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_shard_spec_of_an_unmarked_parameter_is_replicated() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    assert shard_spec(parameter) == ShardSpec("replicated", (3, 2))
    assert not hasattr(parameter, "tensor_model_parallel")


def test_set_shard_spec_marks_split_parameters_for_deepspeed() -> None:
    split, whole = nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(4))
    set_shard_spec(split, SPECS[1])
    set_shard_spec(whole, ShardSpec("replicated", (4,)))
    assert shard_spec(split) is SPECS[1]
    assert split.tensor_model_parallel is True
    assert not hasattr(whole, "tensor_model_parallel")
