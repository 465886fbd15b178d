"""Rules about precision and attention's kernels."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.rules.shapes import head_size, head_size_sources
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem


def one_precision(settings: Settings) -> Iterator[Problem]:
    """bf16 or fp16, not both."""
    if settings.value("training.bf16") and settings.value("training.fp16"):
        yield Problem(
            "bf16 and fp16 are both on: a run has one precision",
            settings.sources("training.bf16", "training.fp16"),
            "keep bf16 (no loss scaling; needs Ampere or newer, or a CPU) or fp16",
        )


def fp16_scales_are_powers(settings: Settings) -> Iterator[Problem]:
    """DeepSpeed takes the first scale as a power of two, and the least one as a whole number."""
    if not settings.value("training.fp16"):
        return
    scale = settings.value("training.initial_loss_scale")
    if 2.0 ** (int(scale).bit_length() - 1) != scale:
        yield Problem(
            f"initial_loss_scale {scale} is not a power of two",
            settings.sources("training.initial_loss_scale"),
            f"use {2 ** (int(scale).bit_length() - 1)} or {2 ** int(scale).bit_length()}",
        )
    least = settings.value("training.min_loss_scale")
    if not float(least).is_integer():
        yield Problem(
            f"min_loss_scale {least} is not a whole number, which DeepSpeed wants",
            settings.sources("training.min_loss_scale"),
            "use 1 or more",
        )


def fp16_on_cpu(settings: Settings) -> Problem:
    """The problem of fp16 on a CPU."""
    return Problem(
        "fp16 needs a GPU, and this run will be on CPU (DS_ACCELERATOR, or no device found)",
        settings.sources("training.fp16"),
        "use --bf16, or fp32 (neither of the two flags)",
    )


def attention_backend_fits(settings: Settings) -> Iterator[Problem]:
    """Kernels differ in what they can do."""
    path = "training.attention_backend"
    backend = settings.value(path)
    dropout = settings.value("model.attention_dropout")
    if backend == "flex" and dropout:
        yield Problem(
            f"attention_backend flex has no dropout, and attention_dropout is {dropout}",
            settings.sources(path, "model.attention_dropout"),
            "set --attention-dropout 0, or leave --attention-backend out: with dropout it takes SDPA and a mask",
        )
    width = head_size(settings)
    if backend == "flex" and width is not None and width < 16:
        yield Problem(
            f"attention_backend flex takes heads of at least 16, and these have {width}",
            (*settings.sources(path), *head_size_sources(settings)),
            "use fewer heads, or leave --attention-backend out",
        )
    if backend in ("flash", "cudnn") and settings.precision == "fp32":
        yield Problem(
            f"attention_backend {backend} takes 16-bit numbers only, and this run is in fp32",
            settings.sources(path),
            "use --bf16, or leave --attention-backend out",
        )
    masked = [
        name
        for name, on in (
            ("data.reset_attention_mask", settings.value("data.reset_attention_mask")),
            ("model.prefix_lm", settings.value("model.prefix_lm")),
            ("model.window_size", settings.value("model.window_size") is not None),
            ("model.position_embedding_type", settings.value("model.position_embedding_type") == "alibi"),
        )
        if on
    ]
    if backend == "flash" and masked:
        yield Problem(
            f"attention_backend flash knows no mask, which {settings.source(masked[0]).name} needs",
            settings.sources(path, *masked),
            "use --attention-backend flex, or leave it out",
        )


def attention_backend_on_cpu(settings: Settings) -> Iterator[Problem]:
    """A CPU has PyTorch's own kernel and the plain one; flex attention has no backward pass there."""
    path = "training.attention_backend"
    backend = settings.value(path)
    if backend not in ("auto", "math"):
        yield Problem(
            f"attention_backend {backend} needs a GPU; this run will be on CPU (DS_ACCELERATOR, or no device found)",
            settings.sources(path),
            "leave --attention-backend out",
        )
