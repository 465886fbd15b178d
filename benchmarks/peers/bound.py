"""What matrix products of a model's shapes reach on this device, as a bound for the rest of a step. Prints a line.

    python -m benchmarks.peers.bound '{"contender": "matmul_bound", ...}' 0

Each product of a layer and of the output head, forward and both of the backward pass, weighted as often as it runs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from torch import Tensor

from benchmarks.peers.workload import RESULT, Workload
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.engine.distributed import local_device

REPEATS = 10


def products(model: ModelConfig, tp_size: int) -> dict[str, tuple[int, int, int]]:
    """Of each matrix on one rank: width of its input, of its output, and how often it occurs in the model."""
    hidden, layers = model.hidden_size, model.num_layers
    width, ffn = model.num_attention_heads * model.head_size // tp_size, model.ffn_size // tp_size
    mixed = width + 2 * max(1, model.num_kv_heads // tp_size) * model.head_size
    return {
        "query_key_value": (hidden, mixed, layers),
        "attention.dense": (width, hidden, layers),
        "dense_h_to_4h": (hidden, (2 if model.is_gated else 1) * ffn, layers),
        "dense_4h_to_h": (ffn, hidden, layers),
        "logits": (hidden, model.padded_vocab_size(tp_size) // tp_size, 1),
    }


def measure(workload: Workload) -> dict[str, object]:
    """TFLOP/s of all products together and of each; bf16 on CUDA, fp32 on CPU."""
    device = local_device()
    on_cuda = device.type == "cuda"
    model = workload.resolve(on_cuda=on_cuda).run.model
    dtype = torch.bfloat16 if on_cuda else torch.float32
    tokens = workload.micro_batch_size * model.seq_length
    operations, seconds, each = 0.0, 0.0, {}
    for name, (inputs, outputs, count) in products(model, workload.cut.tp).items():
        source = torch.randn(tokens, inputs, device=device, dtype=dtype)
        weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
        gradient = torch.randn(tokens, outputs, device=device, dtype=dtype)
        spent = _seconds(source, weight, gradient)
        done = 3 * 2.0 * tokens * inputs * outputs
        each[name] = float(f"{done / spent / 1e12:.4g}")
        operations, seconds = operations + count * done, seconds + count * spent
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "tflops": float(f"{operations / seconds / 1e12:.4g}"),
        "tflops_of_each": each,
        "seconds_per_micro_batch": float(f"{seconds:.4g}"),
    }


def _seconds(source: Tensor, weight: Tensor, gradient: Tensor) -> float:
    """The median of one forward product and the two of the backward pass."""

    def run() -> None:
        source @ weight.t()
        gradient @ weight
        gradient.t() @ source
        if source.is_cuda:
            torch.cuda.synchronize()

    for _ in range(3):
        run()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    print(RESULT + json.dumps(measure(Workload.from_json(sys.argv[1]))), flush=True)
