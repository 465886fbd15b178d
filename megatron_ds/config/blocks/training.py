"""Options of training."""

from __future__ import annotations

from typing import Literal

from megatron_ds.config.blocks.bounds import LARGEST_SCALE, MOST_STEPS
from megatron_ds.config.option import OptionBlock, option


class TrainingConfig(OptionBlock):
    """Batches, number of steps, precision, evaluation."""

    micro_batch_size: int = option(..., "Samples in one forward pass of one process.", ge=1, le=10**6)
    global_batch_size: int | None = option(
        None,
        "Samples in one optimizer step, over all processes. Not given: micro-batch size x data-parallel size.",
        ge=1,
        le=10**9,
    )
    train_iters: int = option(..., "Optimizer steps in the whole run.", ge=0, le=MOST_STEPS)
    eval_interval: int = option(1000, "Steps between evaluations.", ge=1, le=MOST_STEPS)
    eval_iters: int = option(100, "Global batches in one evaluation; 0 turns evaluation off.", ge=0, le=MOST_STEPS)
    seed: int = option(1234, "Seed of the initial weights, the order of samples, and dropout.", ge=0, le=2**32 - 1)
    bf16: bool = option(False, "Trains in bfloat16, with fp32 masters and fp32 gradient accumulation.")
    fp16: bool = option(False, "Trains in float16 with loss scaling (CUDA only).")
    loss_scale: float = option(0.0, "fp16: a fixed loss scale; 0 means a dynamic one.", ge=0, le=LARGEST_SCALE)
    initial_loss_scale: float = option(
        65536.0, "fp16: first value of the dynamic loss scale, a power of two.", ge=1, le=LARGEST_SCALE
    )
    min_loss_scale: float = option(1.0, "fp16: the least dynamic loss scale.", gt=0, le=LARGEST_SCALE)
    loss_scale_window: int = option(1000, "fp16: steps without overflow before the scale doubles.", ge=1, le=MOST_STEPS)
    hysteresis: int = option(2, "fp16: overflows that are tolerated before the scale halves.", ge=1, le=MOST_STEPS)
    max_skipped_steps: int = option(
        50, "fp16: steps in a row that overflow and are skipped, at which the run ends.", ge=1, le=MOST_STEPS
    )
    check_tp_replicas_interval: int | None = option(
        None,
        "Steps between checks that tensor-parallel ranks have equal copies of the parameters that are not cut; a "
        "difference ends the run. Not given: none.",
        ge=1,
        le=MOST_STEPS,
    )
    attention_backend: Literal["auto", "cudnn", "flash", "efficient", "math", "flex"] = option(
        "auto",
        "Kernel of attention. `auto`: on CUDA cuDNN where it fits, else flash, memory-efficient or plain SDPA; flex "
        "attention for ALiBi, windows and separate documents, which never writes out a mask. On a CPU always SDPA.",
    )
    recompute_granularity: Literal["full", "selective"] | None = option(
        None,
        "What the backward pass computes again instead of keeping it. `full`: whole transformer layers; `selective`: "
        "the core of attention, between queries, keys, values and what comes out. Not given: nothing.",
    )
    checkpoint_activations: bool = option(
        False,
        "Short for --recompute-granularity full.",
        aliases=("--deepspeed-activation-checkpointing",),
    )
    recompute_activations: bool = option(False, "Short for --recompute-granularity selective.")
    recompute_method: Literal["uniform", "block"] = option(
        "uniform",
        "full recomputation: of chunks of --recompute-num-layers layers, of which only the first one's input is kept "
        "(`uniform`), or of each of the first --recompute-num-layers layers of every stage and no other (`block`).",
        aliases=("--activations-checkpoint-method",),
    )
    recompute_num_layers: int | None = option(
        None,
        "Layers in a chunk (uniform; 1 when not given), or recomputed layers of each stage (block).",
        aliases=("--checkpoint-num-layers", "--activations-checkpoint-num-layers"),
        ge=1,
        le=10**5,
    )
    distribute_saved_activations: bool = option(
        False,
        "full recomputation: each tensor-parallel rank keeps its share of the inputs that recomputation starts from.",
        aliases=("--partition-activations", "--distribute-checkpointed-activations"),
    )
    checkpoint_in_cpu: bool = option(
        False,
        "full recomputation: the inputs that it starts from wait in pinned host memory.",
        aliases=("--cpu-checkpointing",),
    )

    @property
    def recompute(self) -> Literal["full", "selective"] | None:
        """What the backward pass computes again, whichever of the options says it."""
        if self.recompute_granularity is not None:
            return self.recompute_granularity
        return "full" if self.checkpoint_activations else "selective" if self.recompute_activations else None

    @property
    def precision(self) -> Literal["fp32", "bf16", "fp16"]:
        """The dtype that the layers compute in."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"
