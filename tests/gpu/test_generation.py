"""Texts on CUDA are those of the CPU, and nothing is compiled or planned for the lengths that they grow through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.models import AttentionScheme
from megatron_ds.models.sdpa import SdpaAttention
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks
from tests.generation.models import PROMPTS, SIZES, Weights, greedy, model_at, random_weights, texts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "causal": {},
    "shared heads": {"num_query_groups": 2, "position_embedding_type": "rope"},
    "alibi": {"position_embedding_type": "alibi"},
    "window": {"window_size": 4, "position_embedding_type": "rope", "num_query_groups": 1},
    "prefix": {"prefix_lm": True, "kv_channels": 16},
}


def _on_cuda(config: ModelConfig, weights: Weights, dtype: torch.dtype) -> list[tuple[int, ...]]:
    mpu = ModelParallelUnit.offline(device="cuda")
    model = InferenceModel(config, mpu, dtype)
    model.load(lambda name, spec: spec.shard(weights[name], 0, 1))
    return [each.tokens for each in texts(model, PROMPTS, greedy(), together=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_on_cuda_are_those_of_the_cpu(kind: str) -> None:
    config = ModelConfig(**SIZES, **KINDS[kind])
    weights = random_weights(config)
    expected = [each.tokens for each in texts(model_at(1, 1, config, weights), PROMPTS, greedy(), together=True)]
    assert _on_cuda(config, weights, torch.float32) == expected
    for dtype in (torch.bfloat16, torch.float16):
        assert [len(tokens) for tokens in _on_cuda(config, weights, dtype)] == [len(tokens) for tokens in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_for_inference_uses_no_kernel_that_is_made_for_a_length(kind: str) -> None:
    config = ModelConfig(**SIZES, **KINDS[kind], attention_dropout=0.0)
    scheme = AttentionScheme(config, ModelParallelUnit.offline(device="cuda"), backend="inference")
    assert isinstance(scheme.kernel, SdpaAttention)
    assert "cudnn" not in scheme.kernel.candidates


def _texts_of_rank(tp: int, pp: int, config: ModelConfig, weights: Weights) -> list[tuple[int, ...]]:
    device = torch.device("cuda", torch.cuda.current_device())
    mpu = ModelParallelUnit.create(tp, pp, device)
    model = InferenceModel(config, mpu, torch.float32)
    model.load(lambda name, spec: spec.shard(weights[name], mpu.tp_rank, tp))
    return [each.tokens for each in texts(model, PROMPTS, greedy(), together=True)]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_texts_over_nccl_are_those_of_one_gpu(tp: int, pp: int) -> None:
    config = ModelConfig(**SIZES)
    weights = random_weights(config)
    expected = _on_cuda(config, weights, torch.float32)
    found = run_ranks(2, _texts_of_rank, device="cuda", tp=tp, pp=pp, config=config, weights=weights)
    assert found == [expected, expected]
