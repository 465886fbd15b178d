"""Floating-point operations of a training step, and the share of the hardware's peak that they make up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from megatron_ds.config.blocks import ModelConfig

# The backward pass works out two products (the gradient of the input and of the weight) for each forward one.
_FORWARD_AND_BACKWARD = 3


def model_flops_per_step(model: ModelConfig, batch_size: int, vocab_size: int) -> int:
    """Floating-point operations that one training step of the model needs, however it is run.

    With B samples of s tokens, l layers, width h, n heads and g heads of keys and values of width d, MLP width f, m
    matrices in the MLP (3 when it is gated, else 2) and V token ids::

        B * s * (l * (12*h*d*(n + g) + 6*m*h*f + 12*c*n*d) + 6*h*V)

    where c is s, or the size of a sliding window if that is less. For n = g, n*d = h, m = 2, c = s and f = 4h it is
    ``72*B*s*l*h^2 * (1 + s/(6h) + V/(12lh))``.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
    (arXiv 2104.04473), appendix. The paper prints the formula with recomputation, equation 3: 96 instead of 72 and
    16 instead of 12, see `hardware_flops_per_step`. A multiply-add counts as two operations.

    Counted: the matrix products of attention and of the MLP in each layer, the two products of the attention scores
    (all s x c pairs, although a causal mask needs fewer), and the logits.
    Left out: the embedding look-up, rotary embeddings, norms, softmax, activations, dropout, biases, the loss, the
    optimizer, and recomputation.

    Args:
        model: the architecture; its `seq_length` is s.
        batch_size: samples in the step, over all processes.
        vocab_size: number of logits per token. Pass the size without padding for the work that the model needs.

    Returns:
        Operations of the forward and the backward pass over the whole batch, over all GPUs together.
    """
    tokens = batch_size * model.seq_length
    return _FORWARD_AND_BACKWARD * tokens * (_forward_of_layers(model) + _forward_of_logits(model, vocab_size))


def hardware_flops_per_step(
    model: ModelConfig, batch_size: int, vocab_size: int, *, checkpoint_activations: bool
) -> int:
    """Floating-point operations that the hardware runs in one training step, recomputation included.

    With activation checkpointing each layer's forward pass runs a second time, but the logits' does not: for f = 4h
    ``96*B*s*l*h^2 * (1 + s/(6h) + V/(16lh))``, equation 3 of Narayanan et al. 2021. Without it, the same number as
    `model_flops_per_step`, which has the symbols and what is left out.

    Args:
        model: the architecture.
        batch_size: samples in the step, over all processes.
        vocab_size: number of logits per token; pass the padded size for the work that is really done.
        checkpoint_activations: whether layers are recomputed in the backward pass.
    """
    recomputed = batch_size * model.seq_length * _forward_of_layers(model) if checkpoint_activations else 0
    return model_flops_per_step(model, batch_size, vocab_size) + recomputed


def _forward_of_layers(model: ModelConfig) -> int:
    """Forward operations of all transformer layers for one token."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    projections = 2 * 2 * hidden * model.head_size * (heads + model.num_kv_heads)  # query and output, key and value
    mlp = 2 * (3 if model.is_gated else 2) * hidden * model.ffn_size
    context = min(model.seq_length, model.window_size or model.seq_length)
    scores = 2 * 2 * context * heads * model.head_size  # query x key, and probabilities x value
    return model.num_layers * (projections + mlp + scores)


def _forward_of_logits(model: ModelConfig, vocab_size: int) -> int:
    """Forward operations of the output head for one token; BERT's has a square matrix before the vocabulary's."""
    if model.output_head != "lm":
        return 0  # a score of a whole sequence is next to nothing
    transform = model.hidden_size if model.model_type == "bert" else 0
    return 2 * model.hidden_size * (vocab_size + transform)


@dataclass(frozen=True)
class Throughput:
    """How fast a step was.

    Attributes:
        tokens_per_second: over all processes.
        tokens_per_second_per_gpu: per process.
        model_tflops_per_gpu: model operations (`model_flops_per_step`) per second and process, in units of 1e12.
        mfu: model operations as a share of the peak, 0 to 1; None where the peak is unknown, as on CPU.
    """

    tokens_per_second: float
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float | None


def throughput(
    *, tokens: int, model_flops: int, step_seconds: float, world_size: int, peak_flops_per_gpu: float | None
) -> Throughput:
    """Works out the speed of one step.

    MFU = model FLOPs / (seconds x GPUs x peak FLOP/s of one GPU). Recomputation doesn't raise it (Chowdhery et al.
    2022, "PaLM", appendix B).

    Args:
        tokens: tokens in the global batch.
        model_flops: `model_flops_per_step` of the global batch.
        step_seconds: wall-clock time of the step.
        world_size: all processes, one GPU each.
        peak_flops_per_gpu: see `peak_flops`.
    """
    flops_per_gpu = model_flops / step_seconds / world_size
    return Throughput(
        tokens_per_second=tokens / step_seconds,
        tokens_per_second_per_gpu=tokens / step_seconds / world_size,
        model_tflops_per_gpu=flops_per_gpu / 1e12,
        mfu=flops_per_gpu / peak_flops_per_gpu if peak_flops_per_gpu is not None else None,
    )


@dataclass(frozen=True)
class _Peak:
    """Peak of one kind of GPU, in TFLOP/s, for dense matrices (datasheets like to print twice that, "sparse").

    `words` must all be in the device's name. `fp32` is the peak without TF32.
    """

    words: frozenset[str]
    half: float
    fp32: float
    has_bf16: bool = True


# The first row whose words are all in the name counts, so variants stand before their family.
# Source: NVIDIA's datasheets.
_PEAKS = (
    _Peak(frozenset({"b200"}), 2250, 75),
    _Peak(frozenset({"h200", "nvl"}), 835.5, 60),
    _Peak(frozenset({"h200"}), 989, 67),
    _Peak(frozenset({"gh200"}), 989, 67),
    _Peak(frozenset({"h100", "pcie"}), 756, 51),
    _Peak(frozenset({"h100", "nvl"}), 835.5, 60),
    _Peak(frozenset({"h100"}), 989, 67),
    _Peak(frozenset({"a100"}), 312, 19.5),
    _Peak(frozenset({"l40s"}), 362, 91.6),
    _Peak(frozenset({"v100", "sxm2"}), 125, 15.7, has_bf16=False),
)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Peak FLOP/s of one GPU for dense matrix products.

    Args:
        device_name: as CUDA reports it, for instance ``NVIDIA H100 80GB HBM3``, or ``cpu``.
        precision: ``bf16``, ``fp16`` or ``fp32`` (the last one without TF32).

    Returns:
        Operations per second, or None when the device isn't in the table: a CPU, an unknown GPU, a precision that
        the GPU has no units for, or a MIG slice, whose share of the GPU the name doesn't say exactly.
    """
    words = set(re.split(r"[\s\-]+", device_name.lower()))
    if "mig" in words:
        return None
    row = next((row for row in _PEAKS if row.words <= words), None)
    if row is None or (precision == "bf16" and not row.has_bf16):
        return None
    tflops = {"bf16": row.half, "fp16": row.half, "fp32": row.fp32}.get(precision)
    return tflops * 1e12 if tflops is not None else None
