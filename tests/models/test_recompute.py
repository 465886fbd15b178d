"""Which layers are recomputed together, and what is left of their inputs meanwhile."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from megatron_ds.models.recompute import NO_RECOMPUTE, Recompute, recompute_chunks, recomputed_step, with_recomputation
from megatron_ds.models.saved_inputs import CutOverTensorParallel, Restore
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks

# Two layers of embeddings, five that may be recomputed, two more.
ALLOWED = [False, False, True, True, True, True, True, False, False]


def _full(num_layers: int, method: str = "uniform") -> Recompute:
    return Recompute("full", method, num_layers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recompute", "chunks"),
    [
        (NO_RECOMPUTE, []),
        (Recompute("selective"), []),
        (_full(1), [(2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]),
        (_full(2), [(2, 4), (4, 6), (6, 7)]),
        (_full(9), [(2, 7)]),
        (_full(2, "block"), [(2, 3), (3, 4)]),
        (_full(9, "block"), [(2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]),
    ],
)
def test_recompute_chunks_are_those_of_the_method(recompute: Recompute, chunks: list[tuple[int, int]]) -> None:
    assert [(chunk.start, chunk.stop) for chunk in recompute_chunks(ALLOWED, recompute)] == chunks


def test_recompute_chunks_do_not_reach_over_a_layer_that_is_kept() -> None:
    assert recompute_chunks([True, True, False, True], _full(3)) == [range(2), range(3, 4)]


@pytest.mark.parametrize(
    ("recompute", "text"),
    [
        (NO_RECOMPUTE, "nothing"),
        (Recompute("selective"), "the core of attention"),
        (_full(1), "chunks of 1 layer"),
        (_full(1, "block"), "the first layer of each stage"),
        (_full(3, "block"), "the first 3 layers of each stage, or all that it has"),
        (
            Recompute("full", "uniform", 2, distribute_saved=True, in_cpu=True),
            "chunks of 2 layers, inputs cut over tensor-parallel ranks, inputs in host memory",
        ),
    ],
)
def test_recompute_says_what_it_does(recompute: Recompute, text: str) -> None:
    assert str(recompute) == text


class _Counted(nn.Linear):
    """A layer that counts its passes."""

    runs = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """``[..., 4] -> [..., 4]``."""
        self.runs += 1
        return super().forward(inputs).tanh()


@pytest.mark.parametrize(
    ("recompute", "steps", "runs"),
    [
        (NO_RECOMPUTE, 4, [1, 1, 1, 1]),
        (_full(1), 4, [1, 2, 2, 2]),
        (_full(2), 3, [1, 2, 2, 2]),
        (_full(3), 2, [1, 2, 2, 2]),
        (_full(1, "block"), 4, [1, 2, 1, 1]),
    ],
)
def test_with_recomputation_runs_chunks_twice_with_the_same_gradients(
    recompute: Recompute, steps: int, runs: list[int]
) -> None:
    layers = [_Counted(4, 4) for _ in range(4)]
    inputs = torch.randn(3, 4)

    def gradients(how: Recompute) -> list[Tensor]:
        for layer in layers:
            layer.runs = 0
            layer.zero_grad()
        joined = with_recomputation(layers, [False, True, True, True], how, ModelParallelUnit.offline())
        assert len(joined) == (steps if how is recompute else 4)
        hidden = inputs
        for step in joined:
            hidden = step(hidden)  # type: ignore[assignment]
        hidden.sum().backward()
        return [layer.weight.grad.clone() for layer in layers if layer.weight.grad is not None]

    kept = gradients(NO_RECOMPUTE)
    again = gradients(recompute)
    assert [layer.runs for layer in layers] == runs
    assert len(kept) == 4
    assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))


def test_with_recomputation_runs_once_without_gradients() -> None:
    layer = _Counted(4, 4)
    (step,) = with_recomputation([layer], [True], _full(1), ModelParallelUnit.offline())
    with torch.no_grad():
        step(torch.randn(3, 4))
    assert layer.runs == 1


def _cut_and_gather(dtype: torch.dtype) -> tuple[bool, bool, int]:
    """Recomputes a layer whose input is cut over two ranks.

    Returns:
        Whether the gradient is the uncut one, whether the whole input was alive between the passes, and how many of
        its elements were kept.
    """
    mpu = ModelParallelUnit.create(2, 1, torch.device("cpu"))
    shares: list[Tensor] = []

    def noted(tensor: Tensor) -> Restore:
        shares.append(tensor)
        return lambda: tensor

    source = torch.randn(6, 4, dtype=dtype, requires_grad=True)
    ids = torch.arange(6, dtype=torch.int32)
    empty = torch.empty(0)  # PyTorch 2.11 saves such a one itself
    weight = torch.randn(4, 4, dtype=dtype)

    def layer(inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, numbers, _ = inputs
        return (hidden @ weight * numbers.unsqueeze(1)).tanh(), numbers

    step = recomputed_step(layer, CutOverTensorParallel(mpu, noted), mpu)  # type: ignore[arg-type]
    hidden = source * 2
    whole = weakref.ref(hidden)
    output = step((hidden, ids, empty))[0]
    del hidden
    gc.collect()
    was_alive = whole() is not None
    output.float().sum().backward()
    found, source.grad = source.grad, None
    layer((source * 2, ids, empty))[0].float().sum().backward()
    assert found is not None and source.grad is not None
    return torch.equal(found, source.grad), was_alive, shares[0].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cut_inputs_are_half_as_large_and_come_back_whole(dtype: torch.dtype) -> None:
    for is_equal, was_alive, elements in run_ranks(2, _cut_and_gather, dtype=dtype):
        assert is_equal
        assert not was_alive
        assert elements == 6 * 4 // 2
