"""Initial weights: of the asked-for spread, and no two shards alike (field report P2).

That they are the same at every layout is in test_parity.py.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.engine.weights import full_weights
from megatron_ds.mpu import shard_spec
from tests.dist.pool import run_ranks

STD, LAYERS = 0.02, 4
# Wide enough for the standard deviation of one parameter to be known to a fraction of a percent.
SIZES = ("--hidden-size", "128", "--vocab-size", "500", "--seq-length", "256")
WIDE = Case(2, 2, 1, tied=False, more=SIZES, num_layers=LAYERS)


def _initial_weights() -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """This rank's random shards, and on rank 0 the whole model."""
    tiny = TinyRun(WIDE)
    assert (tiny.mpu.tp_size, tiny.mpu.pp_size) == (2, 2)
    shards = {
        f"{name} of rank {tiny.mpu.global_rank}": parameter.detach().clone()
        for name, parameter in tiny.engine.named_parameters()
        if parameter.dim() == 2 and (shard_spec(parameter).dim is not None or tiny.mpu.tp_rank == 0)
    }
    return shards, full_weights(tiny.engine, tiny.mpu)


def test_initial_weights_have_the_asked_spread_and_differ_between_shards() -> None:
    results = run_ranks(WIDE.world_size, _initial_weights)
    weights = results[0][1]
    for name, weight in weights.items():
        if weight.dim() == 2:
            # The projections into the residual stream start narrower (Radford et al. 2019).
            narrow = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
            wanted = STD / (2 * LAYERS) ** 0.5 if narrow else STD
            assert abs(float(weight.std()) / wanted - 1) < 0.02, name
        else:
            assert torch.all(weight == (1.0 if name.endswith("norm.weight") else 0.0)), name

    shards = {name: shard for result in results for name, shard in result[0].items()}
    assert len(shards) == 2 * 2 + 1 + LAYERS * 4 * 2
    for (one, first), (other, second) in combinations(shards.items(), 2):
        assert first.shape != second.shape or not torch.equal(first, second), (one, other)
