"""Tensor, pipeline and data parallelism: places, groups, and the layers that are cut over them."""

from megatron_ds.mpu.argmax import vocab_parallel_argmax
from megatron_ds.mpu.cross_entropy import vocab_parallel_cross_entropy
from megatron_ds.mpu.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron_ds.mpu.mappings import (
    copy_to_tensor_parallel,
    gather_from_tensor_parallel,
    gather_sequence,
    reduce_from_tensor_parallel,
    reduce_scatter_sequence,
    scatter_to_tensor_parallel,
    shared_weight,
)
from megatron_ds.mpu.random import TensorParallelRng, derive_seed
from megatron_ds.mpu.shard_spec import ShardSpec, set_shard_spec, shard_spec
from megatron_ds.mpu.topology import Coordinates, Topology
from megatron_ds.mpu.unit import ModelParallelUnit

__all__ = [
    "ColumnParallelLinear",
    "Coordinates",
    "ModelParallelUnit",
    "RowParallelLinear",
    "ShardSpec",
    "TensorParallelRng",
    "Topology",
    "VocabParallelEmbedding",
    "copy_to_tensor_parallel",
    "derive_seed",
    "gather_from_tensor_parallel",
    "gather_sequence",
    "reduce_from_tensor_parallel",
    "reduce_scatter_sequence",
    "scatter_to_tensor_parallel",
    "set_shard_spec",
    "shard_spec",
    "shared_weight",
    "vocab_parallel_argmax",
    "vocab_parallel_cross_entropy",
]
