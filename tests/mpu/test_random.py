"""Dropout streams: which ranks agree, and that steps and recomputation find their masks again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatron_ds.mpu import ModelParallelUnit, TensorParallelRng, Topology, derive_seed
from tests.dist.pool import run_ranks

SEED = 1234


@dataclass(frozen=True)
class _Masks:
    """A rank's dropout masks for one step."""

    tp_rank: int
    residual: Tensor
    attention: Tensor


def _mask() -> Tensor:
    return F.dropout(torch.ones(256), 0.5).bool()


def _masks(mpu: ModelParallelUnit, step: int) -> _Masks:
    mpu.seed_step(SEED, step)
    residual = _mask()
    with mpu.rng.fork():
        attention = _mask()
    return _Masks(mpu.tp_rank, residual, attention)


def _masks_of_steps(tp_size: int, pp_size: int) -> list[_Masks]:
    mpu = ModelParallelUnit.create(tp_size, pp_size, torch.device("cpu"))
    assert (mpu.tp_size, mpu.pp_size) == (tp_size, pp_size)
    return [_masks(mpu, step) for step in (0, 1, 0)]


def _unit() -> ModelParallelUnit:
    return ModelParallelUnit.offline(Topology(tp_size=2), global_rank=1)


def _count_distinct(masks: list[Tensor]) -> int:
    return len({tuple(mask.tolist()) for mask in masks})


# Two tensor-parallel groups, as data-parallel replicas and as pipeline stages.
@pytest.mark.parametrize(("pp_size", "dp_size"), [(1, 2), (2, 1)])
def test_streams_agree_over_tensor_parallel_ranks_only_outside_fork(pp_size: int, dp_size: int) -> None:
    ranks = run_ranks(4, _masks_of_steps, tp_size=2, pp_size=pp_size)
    topology = Topology(2, pp_size, dp_size)
    assert [masks[0].tp_rank for masks in ranks] == [topology.coordinates(rank).model for rank in range(4)]
    for step in (0, 1):
        residual = [masks[step].residual for masks in ranks]
        assert torch.equal(residual[0], residual[1])
        assert torch.equal(residual[2], residual[3])
        assert _count_distinct(residual) == 2
        attention = [masks[step].attention for masks in ranks]
        assert _count_distinct(attention + residual) == 4 + 2


def test_streams_are_a_function_of_the_step() -> None:
    for first, other, again in run_ranks(2, _masks_of_steps, tp_size=2, pp_size=1):
        assert torch.equal(first.residual, again.residual)
        assert torch.equal(first.attention, again.attention)
        assert _count_distinct([first.residual, other.residual, first.attention, other.attention]) == 4


def test_seed_step_with_another_seed_gives_other_masks() -> None:
    mpu = _unit()
    masks = []
    for seed in (SEED, SEED + 1):
        mpu.seed_step(seed, 0)
        masks.append(_mask())
        with mpu.rng.fork():
            masks.append(_mask())
    assert _count_distinct(masks) == 4


def test_fork_leaves_the_default_stream_where_it_was() -> None:
    mpu = _unit()
    mpu.seed_step(SEED, 0)
    plain = [_mask(), _mask()]
    mpu.seed_step(SEED, 0)
    interrupted = [_mask()]
    with mpu.rng.fork():
        _mask()
    interrupted.append(_mask())
    assert torch.equal(plain[1], interrupted[1])
    assert torch.equal(plain[0], interrupted[0])


def test_fork_continues_its_own_stream() -> None:
    rng = TensorParallelRng(torch.device("cpu"))
    rng.seed(1, 2)
    with rng.fork():
        together = [_mask(), _mask()]
    rng.seed(1, 2)
    apart = []
    for _ in range(2):
        _mask()
        with rng.fork():
            apart.append(_mask())
    assert all(map(torch.equal, together, apart))
    assert _count_distinct(together) == 2


def test_fork_that_raises_restores_the_default_stream() -> None:
    rng = TensorParallelRng(torch.device("cpu"))
    rng.seed(1, 2)
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), rng.fork():
        _mask()
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), state)


def _two_blocks(recompute: bool) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
    """Loss and gradient of two blocks with both kinds of dropout, the masks seen, and what both streams draw next."""
    mpu = _unit()
    mpu.seed_step(SEED, 0)
    masks: list[Tensor] = []

    def block(hidden: Tensor) -> Tensor:
        with mpu.rng.fork():
            masks.append(_mask())
        hidden = (hidden * masks[-1]).sin()
        masks.append(_mask())
        return (hidden * masks[-1]).exp()

    start = torch.linspace(-1, 1, 256, dtype=torch.float64).requires_grad_()
    hidden = start
    for _ in range(2):
        if recompute:
            hidden = checkpoint(block, hidden, use_reentrant=False, context_fn=mpu.rng.recompute_contexts)
        else:
            hidden = block(hidden)
    loss = hidden.sum()
    loss.backward()
    later = [_mask()]
    with mpu.rng.fork():
        later.append(_mask())
    assert start.grad is not None
    return loss.detach(), start.grad, masks, torch.stack(later)


def test_recompute_contexts_draw_the_masks_of_the_forward_pass() -> None:
    loss, gradient, masks, later = _two_blocks(recompute=False)
    checkpointed_loss, checkpointed_gradient, seen, checkpointed_later = _two_blocks(recompute=True)
    assert len(masks) == 4
    assert len(seen) == 8, "each block has run a second time"
    first, second = masks[:2], masks[2:]
    for mask, expected in zip(seen, [*first, *second, *second, *first], strict=True):
        assert torch.equal(mask, expected)
    assert torch.equal(loss, checkpointed_loss)
    assert torch.equal(gradient, checkpointed_gradient)
    assert torch.equal(later, checkpointed_later), "what comes after the backward pass is the same too"


def test_derive_seed_of_neighbours_never_collides() -> None:
    seeds = {
        derive_seed(name, seed, step, rank)
        for name in ("default", "tensor-parallel")
        for seed in range(10)
        for step in range(50)
        for rank in range(10)
    }
    assert len(seeds) == 2 * 10 * 50 * 10
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derive_seed_is_the_same_in_every_release() -> None:
    # SHA-256 of "default/1234/0", its first eight bytes as a little-endian number, halved.
    assert derive_seed("default", 1234, 0) == 8_649_817_072_824_392_419
