"""Inputs of recomputed layers that wait in host memory: no memory of the GPU, and the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from megatron_ds.models import Recompute, with_recomputation
from megatron_ds.mpu import ModelParallelUnit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: on a CPU everything is in host memory"),
]
LAYERS, WIDTH, TOKENS = 6, 512, 1024
INPUT_BYTES = 4 * WIDTH * TOKENS


class _Layer(nn.Linear):
    """A layer with dropout, so that the random stream counts as well."""

    def forward(self, inputs: Tensor) -> Tensor:
        """``[T, H] -> [T, H]``."""
        return inputs + nn.functional.dropout(super().forward(inputs).tanh(), 0.1)


def _gradients(recompute: Recompute, layers: list[_Layer], inputs: Tensor) -> tuple[list[Tensor], int]:
    """Gradients of a pass through all layers, and the bytes that were held between forward and backward."""
    mpu = ModelParallelUnit.offline(device="cuda")
    for layer in layers:
        layer.weight.grad = layer.bias.grad = None
    torch.manual_seed(1)
    hidden = inputs * 1
    before = torch.cuda.memory_allocated()
    for step in with_recomputation(layers, [True] * LAYERS, recompute, mpu):
        hidden = step(hidden)  # type: ignore[assignment]
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    hidden.square().mean().backward()
    return [parameter.grad for layer in layers for parameter in layer.parameters() if parameter.grad is not None], held


@pytest.mark.parametrize("chunk", [1, 2])
def test_inputs_in_host_memory_take_none_of_the_gpus_and_change_no_bit(chunk: int) -> None:
    torch.manual_seed(0)
    layers = [_Layer(WIDTH, WIDTH, device="cuda") for _ in range(LAYERS)]
    inputs = torch.randn(TOKENS, WIDTH, device="cuda", requires_grad=True)
    kept, most = _gradients(Recompute(), layers, inputs)
    on_gpu, held_on_gpu = _gradients(Recompute("full", "uniform", chunk), layers, inputs)
    on_host, held_on_host = _gradients(Recompute("full", "uniform", chunk, in_cpu=True), layers, inputs)
    assert len(kept) == 2 * LAYERS
    for one, other, third in zip(kept, on_gpu, on_host, strict=True):
        assert torch.equal(one, other) and torch.equal(one, third)
    # The first input and the last output are the caller's own.
    assert held_on_gpu >= (LAYERS // chunk - 1) * INPUT_BYTES > held_on_host
    assert most > held_on_gpu
