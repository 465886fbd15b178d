"""The learning rate as a pure function of the optimizer step: linear warm-up, then constant, linear or cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from megatron_ds.config.blocks import OptimizerConfig


@dataclass(frozen=True)
class LearningRateSchedule:
    """Learning rate of each optimizer step. Holds no state, so that a resumed run needs only its step number.

    Steps are counted from 1 and skipped steps (fp16 overflow) do not count. With n the step, w `warmup_steps` and
    d `decay_steps`::

        n <= w               peak_lr * n / w
        style constant       peak_lr
        n >= d               min_lr
        w < n < d            min_lr + (peak_lr - min_lr) * shape(r),  r = (n - w) / (d - w)
                             shape(r) = 1 - r (linear) or (1 + cos(pi * r)) / 2 (cosine)

    The first line that fits holds: a warm-up as long as the decay still ends at the peak, and the step after it has
    `min_lr`. The constant style never comes down, so `min_lr` and `decay_steps` mean nothing to it.

    Attributes:
        peak_lr: learning rate at the end of the warm-up.
        min_lr: learning rate at `decay_steps` and ever after.
        warmup_steps: steps of linear warm-up; 0 means that step 1 has the peak already (or its first decay).
        decay_steps: step at which the decay ends, warm-up included.
        style: shape of the decay.
    """

    peak_lr: float
    min_lr: float
    warmup_steps: int
    decay_steps: int
    style: Literal["constant", "linear", "cosine"]

    @classmethod
    def from_config(cls, optimizer: OptimizerConfig, train_iters: int) -> LearningRateSchedule:
        """Builds the schedule that the options describe.

        Args:
            optimizer: the optimizer's options; `lr_warmup_fraction` wins over `lr_warmup_iters`.
            train_iters: steps in the whole run; the decay ends there when `lr_decay_iters` is not given.
        """
        decay_steps = optimizer.lr_decay_iters if optimizer.lr_decay_iters is not None else train_iters
        fraction = optimizer.lr_warmup_fraction
        return cls(
            peak_lr=optimizer.lr,
            min_lr=optimizer.min_lr,
            warmup_steps=optimizer.lr_warmup_iters if fraction is None else _share_of_steps(fraction, decay_steps),
            decay_steps=decay_steps,
            style=optimizer.lr_decay_style,
        )

    def learning_rate(self, step: int) -> float:
        """Learning rate that the `step`-th optimizer step uses.

        Args:
            step: the number of the optimizer step, from 1, without skipped steps.
        """
        assert step >= 1, "optimizer steps are counted from 1"
        if step <= self.warmup_steps:
            return self.peak_lr * step / self.warmup_steps
        if self.style == "constant":
            return self.peak_lr
        if step >= self.decay_steps:
            return self.min_lr
        progress = (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        shape = 1 - progress if self.style == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr + (self.peak_lr - self.min_lr) * shape


def _share_of_steps(fraction: float, steps: int) -> int:
    """The whole number of steps nearest to `fraction` x `steps`; halves go up.

    The fraction is taken as the decimal number that the user wrote: 0.145 x 100 is 14.5 and gives 15, although the
    nearest binary number lies a little below 0.145.
    """
    return math.floor(Fraction(str(fraction)) * steps + Fraction(1, 2))
