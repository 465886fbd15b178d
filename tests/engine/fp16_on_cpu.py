"""fp16 without a GPU, for tests of what DeepSpeed does with it: it refuses CPUs without fp16 instructions only."""

from __future__ import annotations

from deepspeed.accelerator import get_accelerator


def allow_fp16_on_cpu() -> None:
    """Lets DeepSpeed build fp16 engines in this rank. Ranks live for one test."""
    type(get_accelerator()).is_fp16_supported = lambda _self: True
