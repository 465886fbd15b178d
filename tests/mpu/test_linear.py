"""Column- and row-parallel linear layers against torch's own on one rank, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_ds.mpu import ColumnParallelLinear, ModelParallelUnit, RowParallelLinear, shard_spec
from tests.dist.pool import run_ranks
from tests.mpu.serial import (
    TOLERANCE,
    TP_SIZES,
    assert_equal_on_all_ranks,
    gradients,
    load_shards,
    make_unit,
    numbers,
    own_slice,
)

INPUTS, OUTPUTS, ROWS = 8, 12, (5, 2)
DTYPES = (torch.float32, torch.float64)
Result = dict[str, Tensor]


def _full(bias: bool, dtype: torch.dtype) -> dict[str, Tensor]:
    weights = {"weight": numbers(1, OUTPUTS, INPUTS, dtype=dtype)}
    return weights | ({"bias": numbers(2, OUTPUTS, dtype=dtype)} if bias else {})


def _input(dtype: torch.dtype) -> Tensor:
    return numbers(3, *ROWS, INPUTS, dtype=dtype)


def _output_gradient(dtype: torch.dtype) -> Tensor:
    return numbers(4, *ROWS, OUTPUTS, dtype=dtype)


def _serial(bias: bool, dtype: torch.dtype) -> Result:
    """The same layer by torch in one process."""
    full = {name: value.requires_grad_() for name, value in _full(bias, dtype).items()}
    hidden = _input(dtype).requires_grad_()
    output = F.linear(hidden, full["weight"], full.get("bias"))
    output.backward(_output_gradient(dtype))
    return {"output": output, "input": hidden.grad, **{name: value.grad for name, value in full.items()}}


def _column(tp_size: int, bias: bool, gather_output: bool) -> list[Result]:
    mpu = make_unit(tp_size)
    return [_column_of(dtype, mpu, bias, gather_output) for dtype in DTYPES]


def _column_of(dtype: torch.dtype, mpu: ModelParallelUnit, bias: bool, gather_output: bool) -> Result:
    layer = ColumnParallelLinear(INPUTS, OUTPUTS, mpu, init_std=0.02, bias=bias, gather_output=gather_output)
    load_shards(layer, _full(bias, dtype), mpu)
    assert layer.weight.shape == (OUTPUTS // mpu.tp_size, INPUTS)
    hidden = _input(dtype).requires_grad_()
    output = layer(hidden)
    gradient = _output_gradient(dtype)
    output.backward(gradient if gather_output else own_slice(gradient, mpu))
    return {"output": output.detach(), "input": hidden.grad, **gradients(layer)}


def _row(tp_size: int, bias: bool, input_is_parallel: bool) -> list[Result]:
    mpu = make_unit(tp_size)
    return [_row_of(dtype, mpu, bias, input_is_parallel) for dtype in DTYPES]


def _row_of(dtype: torch.dtype, mpu: ModelParallelUnit, bias: bool, input_is_parallel: bool) -> Result:
    layer = RowParallelLinear(INPUTS, OUTPUTS, mpu, init_std=0.02, bias=bias, input_is_parallel=input_is_parallel)
    load_shards(layer, _full(bias, dtype), mpu)
    assert layer.weight.shape == (OUTPUTS, INPUTS // mpu.tp_size)
    hidden = (own_slice(_input(dtype), mpu) if input_is_parallel else _input(dtype)).requires_grad_()
    output = layer(hidden)
    output.backward(_output_gradient(dtype))
    return {"output": output.detach(), "input": hidden.grad, **gradients(layer)}


def _mlp(tp_size: int) -> Result:
    """Column then row, the pair that a transformer block is made of."""
    mpu = make_unit(tp_size)
    wide = ColumnParallelLinear(INPUTS, OUTPUTS, mpu, init_std=0.02)
    narrow = RowParallelLinear(OUTPUTS, INPUTS, mpu, init_std=0.02)
    load_shards(wide, _full(True, torch.float64), mpu)
    load_shards(narrow, {"weight": numbers(5, INPUTS, OUTPUTS), "bias": numbers(6, INPUTS)}, mpu)
    hidden = _input(torch.float64).requires_grad_()
    output = narrow(F.gelu(wide(hidden)))
    output.square().sum().backward()
    return {"output": output.detach(), "input": hidden.grad, "wide": wide.weight.grad, "narrow": narrow.weight.grad}


def _joined(results: Sequence[Result], name: str, dim: int) -> Tensor:
    return torch.cat([result[name] for result in results], dim)


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gather_output", [True, False])
def test_column_parallel_linear_equals_one_rank(tp_size: int, bias: bool, gather_output: bool) -> None:
    ranks = run_ranks(tp_size, _column, tp_size=tp_size, bias=bias, gather_output=gather_output)
    for dtype, results in zip(DTYPES, zip(*ranks, strict=True), strict=True):
        serial = _serial(bias, dtype)
        assert ("bias" in results[0]) == bias
        assert results[0]["output"].dtype == dtype
        if gather_output:
            assert_equal_on_all_ranks([result["output"] for result in results])
            output = results[0]["output"]
        else:
            output = _joined(results, "output", -1)
        torch.testing.assert_close(output, serial["output"], **TOLERANCE[dtype])
        for name in serial.keys() - {"output", "input"}:
            torch.testing.assert_close(_joined(results, name, 0), serial[name], **TOLERANCE[dtype])
        assert_equal_on_all_ranks([result["input"] for result in results])
        torch.testing.assert_close(results[0]["input"], serial["input"], **TOLERANCE[dtype])


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("input_is_parallel", [True, False])
def test_row_parallel_linear_equals_one_rank(tp_size: int, bias: bool, input_is_parallel: bool) -> None:
    ranks = run_ranks(tp_size, _row, tp_size=tp_size, bias=bias, input_is_parallel=input_is_parallel)
    for dtype, results in zip(DTYPES, zip(*ranks, strict=True), strict=True):
        serial = _serial(bias, dtype)
        assert ("bias" in results[0]) == bias
        assert results[0]["output"].dtype == dtype
        assert_equal_on_all_ranks([result["output"] for result in results])
        torch.testing.assert_close(results[0]["output"], serial["output"], **TOLERANCE[dtype])
        torch.testing.assert_close(_joined(results, "weight", 1), serial["weight"], **TOLERANCE[dtype])
        if bias:  # replicated: the whole gradient on each rank, once
            for result in results:
                torch.testing.assert_close(result["bias"], serial["bias"], **TOLERANCE[dtype])
        if input_is_parallel:
            gradient = _joined(results, "input", -1)
        else:
            assert_equal_on_all_ranks([result["input"] for result in results])
            gradient = results[0]["input"]
        torch.testing.assert_close(gradient, serial["input"], **TOLERANCE[dtype])


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_column_then_row_equals_one_rank(tp_size: int) -> None:
    full = _full(True, torch.float64)
    hidden = _input(torch.float64).requires_grad_()
    wide, narrow = full["weight"].requires_grad_(), numbers(5, INPUTS, OUTPUTS).requires_grad_()
    output = F.linear(F.gelu(F.linear(hidden, wide, full["bias"])), narrow, numbers(6, INPUTS))
    output.square().sum().backward()

    results = run_ranks(tp_size, _mlp, tp_size=tp_size)
    assert len(results) == tp_size
    for result in results:
        torch.testing.assert_close(result["output"], output.detach())
        torch.testing.assert_close(result["input"], hidden.grad)
    torch.testing.assert_close(_joined(results, "wide", 0), wide.grad)
    torch.testing.assert_close(_joined(results, "narrow", 1), narrow.grad)


def test_parameters_of_parallel_layers_say_how_they_are_cut() -> None:
    mpu = ModelParallelUnit.offline()
    column = ColumnParallelLinear(INPUTS, OUTPUTS, mpu, init_std=0.5, kind="qkv_groups")
    row = RowParallelLinear(INPUTS, OUTPUTS, mpu, init_std=0.25)
    assert (shard_spec(column.weight).kind, shard_spec(column.weight).dim) == ("qkv_groups", 0)
    assert (shard_spec(column.bias).kind, shard_spec(column.bias).dim) == ("qkv_groups", 0)
    assert (shard_spec(row.weight).kind, shard_spec(row.weight).dim) == ("row", 1)
    assert (shard_spec(row.bias).kind, shard_spec(row.bias).dim) == ("replicated", None)
    # DeepSpeed's gradient norm counts a parameter on every rank only with this mark.
    marked = [getattr(p, "tensor_model_parallel", False) for p in (column.weight, column.bias, row.weight, row.bias)]
    assert marked == [True, True, True, False]
    assert [p.init_std for p in (column.weight, column.bias, row.weight, row.bias)] == [0.5, 0.0, 0.25, 0.0]
