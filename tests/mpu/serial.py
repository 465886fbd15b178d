"""What the tests of parallel layers share: the same random tensors on all ranks, and the way into one rank's layer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatron_ds.mpu import ModelParallelUnit, shard_spec

TP_SIZES = (1, 2, 4)
# Summing in another order costs this much in the widest sums of these tests.
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-12, "atol": 1e-12}}


def make_unit(tp_size: int) -> ModelParallelUnit:
    """The unit of this rank in a world of `tp_size` ranks."""
    mpu = ModelParallelUnit.create(tp_size, 1, torch.device("cpu"))
    assert mpu.tp_size == tp_size == dist.get_world_size()
    assert mpu.tp_rank == dist.get_rank()
    return mpu


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal random numbers that depend on the arguments alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def own_slice(full: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """This rank's slice of the last dimension, as a tensor of its own."""
    return full.chunk(mpu.tp_size, -1)[mpu.tp_rank].clone()


def load_shards(layer: nn.Module, full: dict[str, Tensor], mpu: ModelParallelUnit) -> None:
    """Fills a layer's parameters with this rank's shards of the whole ones."""
    parameters = dict(layer.named_parameters())
    assert parameters.keys() == full.keys()
    for name, parameter in parameters.items():
        parameter.data = shard_spec(parameter).shard(full[name], mpu.tp_rank, mpu.tp_size).clone()


def gradients(layer: nn.Module) -> dict[str, Tensor]:
    """The gradients of this rank's shards by name."""
    found = {}
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    return found


def assert_equal_on_all_ranks(tensors: list[Tensor]) -> None:
    """Replicas are equal to the bit."""
    for tensor in tensors[1:]:
        assert torch.equal(tensor, tensors[0])
