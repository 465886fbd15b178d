"""Options of the optimizer and its learning rate."""

from __future__ import annotations

from typing import Literal

from megatron_ds.config.blocks.bounds import MOST_STEPS, SMALLEST
from megatron_ds.config.option import OptionBlock, option


class OptimizerConfig(OptionBlock):
    """AdamW, its learning-rate schedule and gradient clipping."""

    lr: float = option(
        ...,
        "Peak learning rate. Steps count from 1, and the last step of the warm-up has it. Without a warm-up, step 1 is "
        "one step down the decay already.",
        ge=0,
        le=1000,
    )
    min_lr: float = option(
        0.0,
        "Learning rate at the end of the decay: of its last step, without --lr-decay-iters that of the run, and after.",
        ge=0,
        le=1000,
    )
    lr_decay_style: Literal["constant", "linear", "cosine"] = option(
        "linear",
        "Shape of the decay from lr at the end of the warm-up (step 0 without one) to min_lr at --lr-decay-iters.",
    )
    lr_decay_iters: int | None = option(
        None, "Step at which the decay ends; train_iters when not given.", ge=1, le=MOST_STEPS
    )
    lr_warmup_iters: int = option(0, "Steps of linear warm-up.", aliases=("--warmup-iters",), ge=0, le=MOST_STEPS)
    lr_warmup_fraction: float | None = option(
        None, "Warm-up as a share of the decay steps, instead of --lr-warmup-iters.", ge=0, le=1
    )
    weight_decay: float = option(0.01, "Decoupled weight decay of matrices; biases and norms have none.", ge=0, le=1000)
    adam_beta1: float = option(0.9, "Adam's first beta.", ge=0, lt=1)
    adam_beta2: float = option(0.999, "Adam's second beta.", ge=0, lt=1)
    adam_eps: float = option(1e-8, "Adam's epsilon.", ge=SMALLEST, le=1)
    clip_grad: float = option(1.0, "Largest global gradient norm; 0 turns clipping off.", ge=0, le=10**9)
