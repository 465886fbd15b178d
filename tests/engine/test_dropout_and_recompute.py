"""Which ranks share a dropout mask, and what activation checkpointing does (field reports P17, F2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.tiny_run import Case, TinyRun
from tests.dist.pool import run_ranks

DROPPING = Case(dropout=0.5, micro_batch_size=2, global_batch_size=4, num_layers=2)


class _Masks(NamedTuple):
    """What a rank dropped, in the order in which it did."""

    residual: list[Tensor]
    attention: list[Tensor]


def _record_masks() -> _Masks:
    """Notes every dropout mask that this rank draws from now on."""
    masks = _Masks([], [])
    dropout: Callable[..., Tensor] = F.dropout
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention

    def recorded_dropout(values: Tensor, share: float, training: bool) -> Tensor:
        dropped = dropout(values, share, training)
        if training:
            masks.residual.append(dropped.detach() == 0)
        return dropped

    def recorded_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if options.get("dropout_p"):
            # Equal scores and one-hot values: what comes out are the probabilities that were kept.
            state = torch.get_rng_state()
            nothing, one_hot = torch.zeros_like(query), torch.eye(key.shape[-2]).expand(*key.shape[:-1], -1)
            masks.attention.append(attend(nothing, nothing, one_hot, **options).detach() == 0)
            torch.set_rng_state(state)
        return attend(query, key, value, **options)

    F.dropout = recorded_dropout
    F.scaled_dot_product_attention = recorded_attention
    return masks


def masks_of_a_step(case: Case) -> _Masks:
    masks = _record_masks()
    tiny = TinyRun(case)
    tiny.engine.evaluate(tiny.batches(0))
    assert masks == ([], []), "evaluation drops nothing"
    tiny.train_step(0)
    return masks


def same(ours: list[Tensor], theirs: list[Tensor]) -> list[bool]:
    return [torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("zero", [1, 3])
def test_masks_differ_where_the_work_differs(zero: int) -> None:
    case = replace(DROPPING, tp=2, dp=2, zero=zero, micro_batch_size=1)
    # Ranks are (data, tensor): 0 = (0, 0), 1 = (0, 1), 2 = (1, 0), 3 = (1, 1).
    ranks = run_ranks(4, masks_of_a_step, case=case)
    for masks in ranks:
        assert len(masks.attention) == 2 * case.num_layers
        assert len(masks.residual) == 2 * (2 * case.num_layers + 1)
        # Half of the lower triangle is kept; all of the upper one is empty.
        kept = 1 - float(torch.stack(masks.attention).float().mean())
        assert kept == pytest.approx(0.5 * 17 / 32, abs=0.03)
        # No two of a rank's own draws are alike.
        assert not any(same(masks.attention[:-1], masks.attention[1:]))
        assert not any(same(masks.residual[:-1], masks.residual[1:]))
    for one, other in ((0, 1), (2, 3)):
        assert all(same(ranks[one].residual, ranks[other].residual)), "one residual stream over tensor parallelism"
        assert not any(same(ranks[one].attention, ranks[other].attention)), "each rank has heads of its own"
    for one, other in ((0, 2), (1, 3), (0, 3)):
        assert not any(same(ranks[one].residual, ranks[other].residual))
        assert not any(same(ranks[one].attention, ranks[other].attention))


def test_masks_differ_between_stages() -> None:
    first, second = run_ranks(2, masks_of_a_step, case=replace(DROPPING, pp=2, zero=1))
    assert not any(same(first.attention, second.attention))
    assert not any(torch.equal(ours, theirs) for ours in first.residual for theirs in second.residual)


class _Step(NamedTuple):
    """One training step on one rank."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    block_forwards: float
    masks: _Masks


def _gradients_of_a_step(case: Case) -> _Step:
    """Runs one step, without clipping, and catches the gradients on their way into the optimizer."""
    masks = _record_masks()
    tiny = TinyRun(case)
    gradients: dict[str, Tensor] = {}

    def catch(*_: Any) -> None:
        for name, parameter in tiny.engine.named_parameters():
            assert parameter.grad is not None, name
            gradients[name] = parameter.grad.clone()

    # At ZeRO stage 0 the optimizer's parameters are the model's own.
    tiny.engine.deepspeed_engine.basic_optimizer.register_step_pre_hook(catch)
    runs = tiny.count_block_forwards()
    result = tiny.train_step(0)
    forwards = len(runs) / len(tiny.blocks) / case.num_micro_batches
    return _Step(float(result.loss), result.grad_norm, gradients, forwards, masks)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_recompute_runs_layers_twice_and_changes_no_bit(tp: int, pp: int) -> None:
    case = replace(DROPPING, tp=tp, pp=pp, zero=0, more=("--clip-grad", "0"))
    kept = run_ranks(tp * pp, _gradients_of_a_step, case=case)
    recomputed = run_ranks(tp * pp, _gradients_of_a_step, case=replace(case, recompute=True))
    for plain, again in zip(kept, recomputed, strict=True):
        assert (plain.block_forwards, again.block_forwards) == (1, 2)
        assert len(again.masks.attention) == 2 * len(plain.masks.attention)
        assert (again.loss, again.norm) == (plain.loss, plain.norm)
        assert again.gradients.keys() == plain.gradients.keys()
        for name, gradient in plain.gradients.items():
            assert torch.equal(again.gradients[name], gradient), name
            assert gradient.any(), f"{name} has no gradient"
