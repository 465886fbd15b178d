"""Kernels of attention on CUDA: all give one result, and none writes out a mask of the sequence's square."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.attention import AttentionScheme, ParallelAttention, check_kernel
from megatron_ds.models.flex import FlexAttention
from megatron_ds.models.sdpa import SdpaAttention
from tests.dist.pool import run_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

KINDS: dict[str, dict[str, Any]] = {
    "causal": {},
    "alibi": {"position_embedding_type": "alibi"},
    "window": {"window_size": 200, "position_embedding_type": "rope"},
    "documents": {"documents": True, "position_embedding_type": "rope"},
    "prefix": {"prefix_lm": True, "position_embedding_type": "alibi"},
    "all": {"documents": True, "window_size": 200, "position_embedding_type": "alibi", "num_query_groups": 2},
}


def _config(kind: str, sequence: int = 600, **more: Any) -> tuple[ModelConfig, bool]:
    options = {**KINDS[kind], **more}
    separate = options.pop("documents", False)
    sizes = {"num_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "seq_length": sequence, "vocab_size": 64}
    return ModelConfig(**{**sizes, "attention_dropout": 0.0, "hidden_dropout": 0.0, **options}), separate


def _attention(config: ModelConfig, separate: bool, backend: str) -> ParallelAttention:
    from megatron_ds.mpu import ModelParallelUnit

    mpu = ModelParallelUnit.create(1, 1, torch.device("cuda", 0))
    scheme = AttentionScheme(config, mpu, reset_attention_mask=separate, backend=backend)
    with torch.device("cuda"):
        module = ParallelAttention(config, mpu, scheme)
    generator = torch.Generator("cuda").manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    return module


def _run(module: ParallelAttention, config: ModelConfig, dtype: torch.dtype, num_documents: int = 5) -> list[Tensor]:
    """Output, and gradients of the input and of all weights, in fp32."""
    module.to(dtype)
    generator = torch.Generator("cuda").manual_seed(1)
    shape = (config.seq_length, 2, config.hidden_size)
    hidden = torch.randn(shape, device="cuda", dtype=dtype, generator=generator).requires_grad_()
    ids = torch.randint(0, num_documents, (2, shape[0]), device="cuda", generator=generator).sort(1).values.int()
    if config.prefix_lm:
        ids = ids.clamp(max=1)
    output = module(hidden, ids)
    output.backward(torch.randn(shape, device="cuda", generator=generator).to(dtype))
    assert hidden.grad is not None
    grads = [parameter.grad for parameter in module.parameters()]
    return [each.detach().float().cpu() for each in (output, hidden.grad, *grads) if each is not None]


def compare(kind: str, dtype: torch.dtype) -> tuple[str, float]:
    """The kernel's type, and the largest difference to the written-out mask in fp32, relative to the largest number."""
    config, separate = _config(kind)
    expected = _run(_attention(config, separate, "math"), config, torch.float32)
    module = _attention(config, separate, "auto")
    found = _run(module, config, dtype)
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True)]
    return type(module.scheme.kernel).__name__, max(errors)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_equals_the_written_out_mask(kind: str) -> None:
    kernel = (SdpaAttention if kind == "causal" else FlexAttention).__name__
    for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
        ((name, error),) = run_ranks(1, compare, device="cuda", dynamo=True, timeout=200, kind=kind, dtype=dtype)
        assert name == kernel
        assert error <= bound


def peak_of_long_sequence(kind: str, num_documents: int) -> float:
    """Bytes at the peak of a forward and backward pass over 16 384 tokens, beyond what was there before."""
    config, separate = _config(kind, 16384)
    module = _attention(config, separate, "auto")
    _run(module, config, torch.bfloat16, num_documents)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _run(module, config, torch.bfloat16, num_documents)
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(("kind", "num_documents"), [("alibi", 1), ("all", 512)])
def test_nothing_of_the_square_of_the_sequence_is_in_memory(kind: str, num_documents: int) -> None:
    (peak,) = run_ranks(
        1, peak_of_long_sequence, device="cuda", dynamo=True, timeout=200, kind=kind, num_documents=num_documents
    )
    # Even one bit for each pair of tokens would be 2 x 32 MiB; a mask as PyTorch has it, 512 MiB.
    assert peak < 400 * 2**20


def different_documents() -> int:
    """How often kernels are compiled while each micro-batch has other documents."""
    import torch._dynamo.utils as dynamo

    config, separate = _config("documents")
    module = _attention(config, separate, "auto")
    for number in range(2, 8):
        _run(module, config, torch.bfloat16, num_documents=number)
    return int(dynamo.counters["stats"]["unique_graphs"])


def test_other_documents_compile_nothing_anew() -> None:
    (graphs,) = run_ranks(1, different_documents, device="cuda", dynamo=True, timeout=200)
    assert graphs <= 2


def chosen(precision: str, **options: Any) -> str:
    from megatron_ds.mpu import ModelParallelUnit

    config, separate = _config("causal", 2048, **options)
    mpu = ModelParallelUnit.create(1, 1, torch.device("cuda", 0))
    scheme = AttentionScheme(config, mpu, reset_attention_mask=separate)
    like = torch.empty(2, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[precision], device="cuda")
    return check_kernel(config, mpu, scheme, like)


def test_start_names_the_kernel() -> None:
    names = {
        ("bf16", ()): "SDPA cudnn",
        ("fp32", ()): "SDPA efficient",
        ("bf16", (("window_size", 64),)): "flex",
        ("bf16", (("documents", True), ("attention_dropout", 0.1))): "SDPA efficient with a written-out mask",
    }
    for (precision, options), expected in names.items():
        (name,) = run_ranks(1, chosen, device="cuda", timeout=100, precision=precision, **dict(options))
        # Which kernel takes a mask with dropout is PyTorch's affair.
        assert name == expected or (name.endswith("written-out mask") and expected.endswith("written-out mask"))
