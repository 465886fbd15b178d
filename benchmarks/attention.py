"""Milliseconds of attention's kernels on a GPU, forward, and forward with backward, as JSON lines.

    python benchmarks/attention.py

Causal attention through each kernel of SDPA and through flex attention; then documents, ALiBi and a window, through
flex attention and through SDPA with the mask written out. Warm-up of 5, mean of 20 calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from megatron_ds.models.flex import FlexAttention
from megatron_ds.models.positions import alibi_slopes
from megatron_ds.models.sdpa import SdpaAttention

CUDA = torch.device("cuda")
WINDOW = 512

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """A micro-batch of one layer.

    Attributes:
        batch: samples.
        heads: of queries.
        kv_heads: of keys and values.
        sequence: tokens of a sample.
        head_size: width of a head.
    """

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    head_size: int

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Random queries, keys and values in bf16, ``[B, N, S, D]``."""
        counts = (self.heads, self.kv_heads, self.kv_heads)
        query, key, value = (
            torch.randn(self.batch, count, self.sequence, self.head_size, device=CUDA, dtype=torch.bfloat16)
            for count in counts
        )
        return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


SHAPES = (
    Shape(16, 24, 24, 2048, 96),
    Shape(8, 16, 16, 2048, 128),
    Shape(8, 16, 4, 2048, 128),
    Shape(2, 32, 32, 8192, 128),
)


def main() -> None:
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for shape in SHAPES:
        inputs = shape.tensors()
        for name in ("cudnn", "flash", "efficient"):
            kernel = SdpaAttention(name, CUDA)
            report("causal", name, shape, inputs, lambda q, k, v, kernel=kernel: kernel(q, k, v, None))
        flex(shape, inputs, "causal", None, None)
    shape = SHAPES[0]
    inputs = shape.tensors()
    for count in (1, 8, 512):
        ids = torch.randint(0, count, (shape.batch, shape.sequence), device=CUDA).sort(1).values.int()
        flex(shape, inputs, f"{count} documents", None, None, ids)
        mask = (ids[:, :, None] == ids[:, None, :]).tril_().unsqueeze(1)
        written_out(shape, inputs, f"{count} documents", mask)
    slopes = alibi_slopes(shape.heads).to(CUDA)
    flex(shape, inputs, "alibi", None, slopes)
    places = torch.arange(shape.sequence, device=CUDA)
    bias = -slopes[:, None, None] * (places[:, None] - places)
    bias = bias.masked_fill(places[:, None] < places, -torch.inf).bfloat16().unsqueeze(0)
    written_out(shape, inputs, "alibi", bias)
    flex(shape, inputs, f"window of {WINDOW}", WINDOW, None)


def flex(
    shape: Shape,
    inputs: tuple[Tensor, Tensor, Tensor],
    case: str,
    window: int | None,
    slopes: Tensor | None,
    ids: Tensor | None = None,
) -> None:
    kernel = FlexAttention(window, slopes)
    # Kernels of other shapes count against torch.compile's limit of variants.
    torch.compiler.reset()
    report(case, "flex", shape, inputs, lambda q, k, v: kernel(q, k, v, ids))


def written_out(shape: Shape, inputs: tuple[Tensor, Tensor, Tensor], case: str, mask: Tensor) -> None:
    for name in ("cudnn", "efficient"):
        kernel = SdpaAttention(name, CUDA)
        report(case, f"{name}, mask written out", shape, inputs, lambda q, k, v, kernel=kernel: kernel(q, k, v, mask))


def report(case: str, name: str, shape: Shape, inputs: tuple[Tensor, Tensor, Tensor], attend: Attention) -> None:
    gradient = torch.randn_like(inputs[0])

    def both() -> None:
        attend(*inputs).backward(gradient)
        for each in inputs:
            each.grad = None

    forward = milliseconds(lambda: attend(*inputs))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = milliseconds(both)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    record = {"case": case, "kernel": name, **asdict(shape), "forward_ms": forward, "both_ms": total, "gib": peak}
    print(json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in record.items()}), flush=True)


def milliseconds(call: Callable[[], object], repeats: int = 20) -> float:
    for _ in range(5):
        call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


if __name__ == "__main__":
    main()
