"""Rules about the learning rate."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem


def one_warmup(settings: Settings) -> Iterator[Problem]:
    """Warm-up is a number of steps or a share."""
    steps, share = settings.value("optimizer.lr_warmup_iters"), settings.value("optimizer.lr_warmup_fraction")
    if steps and share is not None:
        yield Problem(
            "lr_warmup_iters and lr_warmup_fraction are both given",
            settings.sources("optimizer.lr_warmup_iters", "optimizer.lr_warmup_fraction"),
            "keep one of the two",
        )


def warmup_ends_before_decay(settings: Settings) -> Iterator[Problem]:
    """The decay begins where warm-up ends; without a decay of its own length, that is the whole run.

    --lr-decay-iters says how long the schedule is, so that a run may stop earlier, even within the warm-up.
    """
    warmup = settings.value("optimizer.lr_warmup_iters")
    decays = settings.value("optimizer.lr_decay_style") != "constant"
    given = decays and settings.value("optimizer.lr_decay_iters") is not None
    path = "optimizer.lr_decay_iters" if given else "training.train_iters"
    end = settings.value(path)
    if end and warmup > end:
        what = "decay, which ends" if decays else "run, which ends"
        later = "--lr-decay-iters" if decays else "--train-iters"
        yield Problem(
            f"warm-up of {warmup} steps is longer than the {what} at step {end}",
            settings.sources("optimizer.lr_warmup_iters", path),
            f"warm up for at most {end} steps, or give a later {later}",
        )


def min_lr_is_below_lr(settings: Settings) -> Iterator[Problem]:
    """The learning rate decays; it doesn't grow."""
    peak, floor = settings.value("optimizer.lr"), settings.value("optimizer.min_lr")
    if peak is not None and floor > peak:
        yield Problem(
            f"min_lr {floor} is more than lr {peak}",
            settings.sources("optimizer.min_lr", "optimizer.lr"),
            "min_lr is where the decay from lr ends: swap them, or leave min_lr out",
        )
