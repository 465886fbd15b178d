"""The learning-rate schedule of a run that goes on from a checkpoint: it has to be said when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from megatron_ds.checkpoint.find import FoundCheckpoint
from megatron_ds.config.blocks import OptimizerConfig, RunConfig
from megatron_ds.errors import Problem, Source
from megatron_ds.optim.schedule import LearningRateSchedule

_OPTIONS = ("lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_warmup_iters", "lr_warmup_fraction")


def schedule_problems(found: FoundCheckpoint, run: RunConfig, origins: Mapping[str, str]) -> list[Problem]:
    """One problem where the run's schedule is not the checkpoint's and nobody said which of them counts."""
    checkpoint = run.checkpoint
    if checkpoint.override_lr_scheduler or checkpoint.use_checkpoint_lr_scheduler or checkpoint.finetune:
        return []
    saved = saved_optimizer(found)
    if saved is None:
        return []
    now = LearningRateSchedule.from_config(run.optimizer, run.training.train_iters)
    before = LearningRateSchedule.from_config(saved, _train_iters(found))
    if _effective(before) == _effective(now):
        return []
    where = f"the checkpoint {found.folder / found.tag}"
    sources: list[Source] = []
    for attribute in fields(LearningRateSchedule):
        old, new = getattr(before, attribute.name), getattr(now, attribute.name)
        if old != new:
            sources.append(Source(attribute.name, str(old), where))
            sources.append(Source(attribute.name, str(new), _origin(attribute.name, origins)))
    return [
        Problem(
            "the learning-rate schedule is not the one that the checkpoint was trained with",
            tuple(sources),
            "give the options of the run that saved; or --use-checkpoint-lr-scheduler to go on with its schedule, or "
            "--override-lr-scheduler to go on with this one",
        )
    ]


def saved_optimizer(found: FoundCheckpoint) -> OptimizerConfig | None:
    """The optimizer's options of the run that saved; None where a tool wrote the checkpoint."""
    options: dict[str, Any] | None = found.manifest.options.get("optimizer")
    if not options:
        return None
    saved = OptimizerConfig(**options)
    # A decay that ends with the run ended there, however long this run is.
    return saved if saved.lr_decay_iters else saved.model_copy(update={"lr_decay_iters": _train_iters(found)})


def saved_schedule(found: FoundCheckpoint) -> dict[str, Any]:
    """The schedule's options of the run that saved, by name of the optimizer's option."""
    saved = saved_optimizer(found)
    return {} if saved is None else {name: getattr(saved, name) for name in _OPTIONS}


def _train_iters(found: FoundCheckpoint) -> int:
    return int(found.manifest.options["training"]["train_iters"])


def _effective(schedule: LearningRateSchedule) -> LearningRateSchedule:
    """A constant rate does not depend on where a decay would end."""
    return replace(schedule, min_lr=0.0, decay_steps=0) if schedule.style == "constant" else schedule


def _origin(attribute: str, origins: Mapping[str, str]) -> str:
    options = {
        "peak_lr": ("lr",),
        "min_lr": ("min_lr",),
        "warmup_steps": ("lr_warmup_fraction", "lr_warmup_iters"),
        "decay_steps": ("lr_decay_iters",),
        "style": ("lr_decay_style",),
    }[attribute]
    given = [
        origins[f"optimizer.{name}"] for name in options if origins.get(f"optimizer.{name}", "default") != "default"
    ]
    return given[0] if given else "this run"
