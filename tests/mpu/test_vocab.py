"""Vocabulary split over ranks: embedding, its scores, and the cross-entropy, against one rank without padding.

259 ids padded to 512 leave the last of four ranks with padding alone, and the one before it with three ids.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_ds.mpu import ModelParallelUnit, VocabParallelEmbedding, shard_spec, vocab_parallel_cross_entropy
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

VOCAB, PADDED, HIDDEN = 259, 512, 8
# [B, S]: the first and the last id, both sides of every border between ranks, and one id twice.
TOKENS = torch.tensor([[0, 127, 128, 255, 256], [258, 257, 7, 7, 130]])
DTYPES = (torch.float32, torch.float64)


def _embedding(tp_size: int, dtype: torch.dtype) -> tuple[VocabParallelEmbedding, ModelParallelUnit]:
    mpu = make_unit(tp_size)
    layer = VocabParallelEmbedding(VOCAB, PADDED, HIDDEN, mpu, init_std=0.02)
    load_shards(layer, {"weight": numbers(1, VOCAB, HIDDEN, dtype=dtype)}, mpu)
    assert layer.weight.shape == (PADDED // tp_size, HIDDEN)
    return layer, mpu


def _look_up(tp_size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    layer, _ = _embedding(tp_size, dtype)
    output = layer(TOKENS)
    output.backward(numbers(2, *output.shape, dtype=dtype))
    return {"output": output.detach(), **gradients(layer)}


def _score(tp_size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    layer, mpu = _embedding(tp_size, dtype)
    hidden = numbers(3, 5, 2, HIDDEN, dtype=dtype).requires_grad_()
    scores = layer.logits(hidden)
    gradient = F.pad(numbers(4, 5, 2, VOCAB, dtype=dtype), (0, PADDED - VOCAB))
    scores.backward(own_slice(gradient, mpu))
    return {"output": scores.detach(), "input": hidden.grad, **gradients(layer)}


def _logits(dtype: torch.dtype, padding: float, forbidden: tuple[int, int]) -> Tensor:
    """Scores [5, 2, 512] whose padding columns hold `padding`, and the ids in the range `forbidden` minus infinity."""
    logits = torch.full((5, 2, PADDED), padding, dtype=dtype)
    logits[..., :VOCAB] = 5 * numbers(5, 5, 2, VOCAB, dtype=dtype)
    logits[..., forbidden[0] : forbidden[1]] = -torch.inf
    return logits


def _cross_entropy(tp_size: int, dtype: torch.dtype, padding: float, forbidden: tuple[int, int]) -> dict[str, Tensor]:
    mpu = make_unit(tp_size)
    logits = own_slice(_logits(dtype, padding, forbidden), mpu)
    before = logits.clone()
    assert logits.shape[-1] == PADDED // tp_size
    logits.requires_grad_()
    loss = vocab_parallel_cross_entropy(logits, TOKENS.transpose(0, 1), VOCAB, mpu)
    loss.backward(numbers(6, 5, 2).to(loss.dtype))
    torch.testing.assert_close(logits.detach(), before, rtol=0, atol=0, equal_nan=True)  # the scores are the caller's
    return {"loss": loss.detach(), "gradient": logits.grad}


def _serial_cross_entropy(dtype: torch.dtype, padding: float, forbidden: tuple[int, int]) -> tuple[Tensor, Tensor]:
    logits = _logits(dtype, padding, forbidden)[..., :VOCAB].double().requires_grad_()
    targets = TOKENS.transpose(0, 1)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    loss.backward(numbers(6, 5, 2))
    return loss.detach(), logits.grad


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_vocab_parallel_embedding_equals_one_rank(tp_size: int, dtype: torch.dtype) -> None:
    weight = numbers(1, VOCAB, HIDDEN, dtype=dtype).requires_grad_()
    output = F.embedding(TOKENS.transpose(0, 1), weight)
    output.backward(numbers(2, *output.shape, dtype=dtype))

    results = run_ranks(tp_size, _look_up, tp_size=tp_size, dtype=dtype)
    assert results[0]["output"].dtype == dtype
    for result in results:
        assert torch.equal(result["output"], output.detach())
    gradient = torch.cat([result["weight"] for result in results])
    torch.testing.assert_close(gradient[:VOCAB], weight.grad, **TOLERANCE[dtype])
    assert not gradient[VOCAB:].any(), "rows of padding get no gradient"


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_vocab_parallel_logits_equal_one_rank(tp_size: int, dtype: torch.dtype) -> None:
    weight = numbers(1, VOCAB, HIDDEN, dtype=dtype).requires_grad_()
    hidden = numbers(3, 5, 2, HIDDEN, dtype=dtype).requires_grad_()
    output = F.linear(hidden, weight)
    output.backward(numbers(4, 5, 2, VOCAB, dtype=dtype))

    results = run_ranks(tp_size, _score, tp_size=tp_size, dtype=dtype)
    scores = torch.cat([result["output"] for result in results], -1)
    assert scores.dtype == dtype
    torch.testing.assert_close(scores[..., :VOCAB], output.detach(), **TOLERANCE[dtype])
    assert not scores[..., VOCAB:].any(), "rows of padding are zero"
    gradient = torch.cat([result["weight"] for result in results])
    torch.testing.assert_close(gradient[:VOCAB], weight.grad, **TOLERANCE[dtype])
    assert_equal_on_all_ranks([result["input"] for result in results])
    torch.testing.assert_close(results[0]["input"], hidden.grad, **TOLERANCE[dtype])


def test_vocab_parallel_embedding_says_how_it_is_cut() -> None:
    layer = VocabParallelEmbedding(VOCAB, PADDED, HIDDEN, ModelParallelUnit.offline(), init_std=0.02)
    spec = shard_spec(layer.weight)
    assert (spec.kind, spec.dim, spec.full_shape, spec.padded_rows) == ("vocab", 0, (VOCAB, HIDDEN), PADDED)
    assert layer.weight.tensor_model_parallel is True


# Padding columns with huge, usual or infinite scores: none of them may be seen in the loss.
@pytest.mark.parametrize("padding", [1e4, 0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_vocab_parallel_cross_entropy_equals_one_rank_without_padding(tp_size: int, padding: float) -> None:
    arguments = {"dtype": torch.float32, "padding": padding, "forbidden": (0, 0)}
    loss, gradient = _serial_cross_entropy(**arguments)
    results = run_ranks(tp_size, _cross_entropy, tp_size=tp_size, **arguments)
    assert_equal_on_all_ranks([result["loss"] for result in results])
    torch.testing.assert_close(results[0]["loss"].double(), loss, rtol=1e-6, atol=1e-6)
    whole = torch.cat([result["gradient"] for result in results], -1)
    torch.testing.assert_close(whole[..., :VOCAB].double(), gradient, rtol=1e-5, atol=1e-6)
    assert torch.equal(whole[..., VOCAB:], torch.zeros_like(whole[..., VOCAB:]))


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_vocab_parallel_cross_entropy_of_bf16_scores_is_computed_in_fp32(tp_size: int) -> None:
    arguments = {"dtype": torch.bfloat16, "padding": 1e4, "forbidden": (0, 0)}
    loss, gradient = _serial_cross_entropy(**arguments)
    for rank, result in enumerate(run_ranks(tp_size, _cross_entropy, tp_size=tp_size, **arguments)):
        assert result["loss"].dtype == torch.float32
        assert result["gradient"].dtype == torch.bfloat16
        torch.testing.assert_close(result["loss"].double(), loss, rtol=1e-6, atol=1e-6)
        whole = F.pad(gradient, (0, PADDED - VOCAB)).chunk(tp_size, -1)[rank]
        # The gradient itself is rounded to bf16, which has 8 bits of precision.
        torch.testing.assert_close(result["gradient"].double(), whole, rtol=4e-3, atol=1e-6)


# Ids 10 to 120 lie within the first of four ranks, 131 to 256 are all of the second but what TOKENS asks for.
@pytest.mark.parametrize("forbidden", [(10, 120), (131, 255)])
@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_vocab_parallel_cross_entropy_with_forbidden_ids_stays_finite(tp_size: int, forbidden: tuple[int, int]) -> None:
    arguments = {"dtype": torch.float32, "padding": 1e4, "forbidden": forbidden}
    loss, gradient = _serial_cross_entropy(**arguments)
    assert loss.isfinite().all()
    results = run_ranks(tp_size, _cross_entropy, tp_size=tp_size, **arguments)
    torch.testing.assert_close(results[0]["loss"].double(), loss, rtol=1e-6, atol=1e-6)
    whole = torch.cat([result["gradient"] for result in results], -1)
    torch.testing.assert_close(whole[..., :VOCAB].double(), gradient, rtol=1e-5, atol=1e-6)
