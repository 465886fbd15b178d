"""Places and groups: against DeepSpeed's own topology, and as real process groups."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megatron_ds.mpu import Coordinates, ModelParallelUnit, Topology
from tests.dist.pool import run_ranks

SIZES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (4, 2, 1), (2, 3, 4), (8, 8, 4)]  # (tp, pp, dp)


def _deepspeed_lists(tp_size: int, pp_size: int, dp_size: int) -> dict[str, list[list[int]]]:
    """DeepSpeed's rank order and groups for a grid."""
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology  # slow; the ranks have it

    grid = PipeModelDataParallelTopology(num_pp=pp_size, num_mp=tp_size, num_dp=dp_size)
    coordinates = [grid.get_coord(rank) for rank in range(grid.world_size())]
    return {
        "places": [[place.pipe, place.data, place.model] for place in coordinates],
        **{axis: grid.get_axis_comm_lists(axis) for axis in ("pipe", "data", "model")},
    }


def _all_deepspeed_lists() -> list[dict[str, list[list[int]]]]:
    return [_deepspeed_lists(*sizes) for sizes in SIZES]


def _own_groups(tp_size: int, pp_size: int) -> dict[str, object]:
    """This rank's groups, by a collective in each of them, and what Megatron's names say."""
    mpu = ModelParallelUnit.create(tp_size, pp_size, torch.device("cpu"))
    assert (mpu.tp_size, mpu.pp_size) == (tp_size, pp_size)

    def members(group: dist.ProcessGroup | None) -> list[int]:
        found: list[int] = [0] * dist.get_world_size(group)
        dist.all_gather_object(found, dist.get_rank(), group=group)
        return found

    sizes_and_ranks = [
        (mpu.get_tensor_model_parallel_group(), "tensor_model_parallel"),
        (mpu.get_pipeline_model_parallel_group(), "pipeline_model_parallel"),
        (mpu.get_data_parallel_group(), "data_parallel"),
        (mpu.get_model_parallel_group(), "model_parallel"),
    ]
    for group, name in sizes_and_ranks:
        assert getattr(mpu, f"get_{name}_world_size")() == dist.get_world_size(group), name
        assert getattr(mpu, f"get_{name}_rank")() == dist.get_rank(group), name
    assert mpu.get_tensor_model_parallel_src_rank() == min(members(mpu.tp_group))
    return {
        "place": Coordinates(mpu.pp_rank, mpu.dp_rank, mpu.tp_rank),
        **{name: members(group) for group, name in sizes_and_ranks},
    }


def test_topology_equals_deepspeeds_own() -> None:
    (expected,) = run_ranks(1, _all_deepspeed_lists)
    for (tp_size, pp_size, dp_size), lists in zip(SIZES, expected, strict=True):
        topology = Topology(tp_size, pp_size, dp_size)
        assert topology.world_size == tp_size * pp_size * dp_size == len(lists["places"])
        for rank, (pipe, data, model) in enumerate(lists["places"]):
            assert topology.coordinates(rank) == Coordinates(pipe, data, model)
            assert topology.rank(pipe, data, model) == rank
        for axis in ("pipe", "data", "model"):
            # DeepSpeed leaves out an axis of size one.
            own = topology.groups(axis) if len(topology.groups(axis)[0]) > 1 else []
            assert sorted(own) == sorted(group for group in lists[axis] if len(group) > 1)


def test_topology_groups_along_two_axes_hold_one_model_each() -> None:
    assert Topology(tp_size=2, pp_size=2, dp_size=2).groups("pipe", "model") == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(("tp_size", "pp_size", "world_size"), [(2, 2, 8), (4, 1, 4), (1, 2, 4), (1, 1, 2)])
def test_unit_create_makes_the_groups_of_its_topology(tp_size: int, pp_size: int, world_size: int) -> None:
    topology = Topology(tp_size, pp_size, world_size // (tp_size * pp_size))
    found = run_ranks(world_size, _own_groups, tp_size=tp_size, pp_size=pp_size)
    axes = {
        "tensor_model_parallel": ("model",),
        "pipeline_model_parallel": ("pipe",),
        "data_parallel": ("data",),
        "model_parallel": ("pipe", "model"),
    }
    for rank, groups in enumerate(found):
        assert groups["place"] == topology.coordinates(rank)
        for name, along in axes.items():
            (own,) = [group for group in topology.groups(*along) if rank in group]
            assert groups[name] == own, (rank, name)


def test_unit_offline_sits_where_it_is_told() -> None:
    mpu = ModelParallelUnit.offline(Topology(2, 2, 2), global_rank=6)
    assert (mpu.pp_rank, mpu.dp_rank, mpu.tp_rank) == (1, 1, 0)
    assert mpu.get_model_parallel_rank() == 2
    assert mpu.tp_group is None
