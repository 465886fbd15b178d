"""The mappings between split and whole activations, forward and backward, against arithmetic in one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megatron_ds.mpu import (
    ModelParallelUnit,
    copy_to_tensor_parallel,
    gather_from_tensor_parallel,
    gather_sequence,
    reduce_from_tensor_parallel,
    reduce_scatter_sequence,
    scatter_to_tensor_parallel,
)
from tests.dist.pool import run_ranks
from tests.mpu.serial import TP_SIZES, make_unit, numbers, own_slice

Mapping = Callable[[Tensor, ModelParallelUnit], Tensor]
SHAPE = (3, 2, 8)


def _run(mapping: Mapping, tensor: Tensor, weight: Tensor, mpu: ModelParallelUnit) -> tuple[Tensor, Tensor]:
    """Output, and gradient of the sum of `weight` x output."""
    tensor.requires_grad_()
    output = mapping(tensor, mpu)
    (output * weight).sum().backward()
    assert tensor.grad is not None
    return output.detach(), tensor.grad


def _copy(tp_size: int) -> tuple[Tensor, Tensor]:
    mpu = make_unit(tp_size)
    return _run(copy_to_tensor_parallel, numbers(1, *SHAPE), numbers(100 + mpu.tp_rank, *SHAPE), mpu)


def _reduce(tp_size: int) -> tuple[Tensor, Tensor]:
    mpu = make_unit(tp_size)
    return _run(reduce_from_tensor_parallel, numbers(100 + mpu.tp_rank, *SHAPE), numbers(1, *SHAPE), mpu)


def _scatter(tp_size: int) -> tuple[Tensor, Tensor]:
    mpu = make_unit(tp_size)
    return _run(scatter_to_tensor_parallel, numbers(1, *SHAPE), own_slice(numbers(2, *SHAPE), mpu), mpu)


def _gather(tp_size: int) -> tuple[Tensor, Tensor]:
    mpu = make_unit(tp_size)
    return _run(gather_from_tensor_parallel, own_slice(numbers(1, *SHAPE), mpu), numbers(2, *SHAPE), mpu)


def _transposed(tp_size: int) -> list[tuple[Tensor, Tensor]]:
    """Every mapping with an input and an incoming gradient that are not contiguous."""
    mpu = make_unit(tp_size)
    results = []
    for mapping in (copy_to_tensor_parallel, reduce_from_tensor_parallel, scatter_to_tensor_parallel):
        plain = numbers(1, *SHAPE)
        strided = plain.transpose(0, 1).contiguous().transpose(0, 1)
        assert not strided.is_contiguous()
        width = SHAPE[-1] // (tp_size if mapping is scatter_to_tensor_parallel else 1)
        weight = numbers(2, width, *SHAPE[:2]).permute(1, 2, 0)
        for result, expected in zip(
            _run(mapping, strided, weight, mpu), _run(mapping, plain, weight, mpu), strict=True
        ):
            results.append((result, expected))
    narrow = numbers(3, 2, 3, SHAPE[-1] // tp_size).transpose(0, 1)
    expected = gather_from_tensor_parallel(narrow.contiguous(), mpu)
    results.append((gather_from_tensor_parallel(narrow, mpu), expected))
    return results


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_copy_returns_the_input_and_sums_gradients(tp_size: int) -> None:
    gradient = sum(numbers(100 + rank, *SHAPE) for rank in range(tp_size))
    for output, input_gradient in run_ranks(tp_size, _copy, tp_size=tp_size):
        assert torch.equal(output, numbers(1, *SHAPE))
        torch.testing.assert_close(input_gradient, gradient)


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_reduce_sums_inputs_and_passes_gradients(tp_size: int) -> None:
    total = sum(numbers(100 + rank, *SHAPE) for rank in range(tp_size))
    for output, input_gradient in run_ranks(tp_size, _reduce, tp_size=tp_size):
        torch.testing.assert_close(output, total)
        assert torch.equal(input_gradient, numbers(1, *SHAPE))


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_scatter_slices_the_input_and_gathers_gradients(tp_size: int) -> None:
    results = run_ranks(tp_size, _scatter, tp_size=tp_size)
    assert torch.equal(torch.cat([output for output, _ in results], -1), numbers(1, *SHAPE))
    for output, input_gradient in results:
        assert output.shape[-1] == SHAPE[-1] // tp_size
        assert torch.equal(input_gradient, numbers(2, *SHAPE))


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_gather_joins_slices_and_slices_gradients(tp_size: int) -> None:
    results = run_ranks(tp_size, _gather, tp_size=tp_size)
    for output, input_gradient in results:
        assert torch.equal(output, numbers(1, *SHAPE))
        assert input_gradient.shape[-1] == SHAPE[-1] // tp_size
    assert torch.equal(torch.cat([gradient for _, gradient in results], -1), numbers(2, *SHAPE))


def test_mappings_of_strided_tensors_equal_those_of_contiguous_ones() -> None:
    for results in run_ranks(2, _transposed, tp_size=2):
        assert len(results) == 7
        for result, expected in results:
            assert torch.equal(result, expected)


def test_mappings_at_one_rank_return_the_input_itself() -> None:
    mpu = ModelParallelUnit.offline()
    tensor = numbers(1, *SHAPE)
    for mapping in (
        copy_to_tensor_parallel,
        reduce_from_tensor_parallel,
        scatter_to_tensor_parallel,
        gather_from_tensor_parallel,
        gather_sequence,
        reduce_scatter_sequence,
    ):
        assert mapping(tensor, mpu) is tensor


def _own_tokens(full: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """This rank's slice of the first dimension, strided as a slice of a transposed tensor is."""
    return full.chunk(mpu.tp_size)[mpu.tp_rank].transpose(1, 2).contiguous().transpose(1, 2)


SEQUENCE_SHAPE = (8, 2, 3)


def _sequence_mappings(tp_size: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    mpu = make_unit(tp_size)
    whole, weight = numbers(1, *SEQUENCE_SHAPE), numbers(100 + mpu.tp_rank, *SEQUENCE_SHAPE)
    gathered = _run(gather_sequence, _own_tokens(whole, mpu), weight, mpu)
    return gathered, _run(reduce_scatter_sequence, weight.clone(), _own_tokens(whole, mpu), mpu)


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_sequence_mappings_are_conjugate_to_each_other(tp_size: int) -> None:
    whole = numbers(1, *SEQUENCE_SHAPE)
    total = sum(numbers(100 + rank, *SEQUENCE_SHAPE) for rank in range(tp_size))
    gathered, scattered = zip(*run_ranks(tp_size, _sequence_mappings, tp_size=tp_size), strict=True)
    for output, _ in gathered:
        assert torch.equal(output, whole)
    torch.testing.assert_close(torch.cat([gradient for _, gradient in gathered]), total)
    torch.testing.assert_close(torch.cat([output for output, _ in scattered]), total)
    for _, gradient in scattered:
        assert torch.equal(gradient, whole)
