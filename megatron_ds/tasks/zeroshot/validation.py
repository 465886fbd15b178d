"""The losses of validation sets: the same samples as training's own evaluations have, and so the same numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.data import build_run_datasets
from megatron_ds.data.samples import DatasetOf, SampleCounts
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.models import model_losses
from megatron_ds.tasks.zeroshot.job import Progress, ValidationTask
from megatron_ds.tasks.zeroshot.results import TaskResult, perplexity
from megatron_ds.training.batches import numbered_batch


def evaluate_validation(
    model: InferenceModel, task: ValidationTask, batch_size: int, progress: Progress
) -> list[TaskResult]:
    """The loss of each set, on all ranks. Every rank of every replica calls it.

    Args:
        model: this rank's part of a replica.
        task: the sets.
        batch_size: samples that a replica runs together.
        progress: shows how far a set is.

    Raises:
        DataError: a set is too small, or its index can't be built.
    """
    counts = SampleCounts(train=0, valid=task.num_samples, test=0)
    is_builder = os.environ.get("LOCAL_RANK", "0") == "0"
    datasets = build_run_datasets(task.run, samples=counts, is_builder=is_builder, wait=_wait_for_all)
    results = []
    for name, dataset in datasets.valid.items():
        with progress(f"valid {name}", len(dataset)) as advance:
            results.append(_evaluate_set(model, task, name, dataset, batch_size, advance))
    return results


def _evaluate_set(
    model: InferenceModel,
    task: ValidationTask,
    name: str,
    dataset: DatasetOf[Any],
    batch_size: int,
    advance: Callable[[int], object],
) -> TaskResult:
    mpu, size = model.mpu, batch_size
    names = tuple(model_losses(model.config, mpu))
    # Sums of losses, and labels that count.
    totals = torch.zeros(2, len(names), dtype=torch.float64, device=mpu.device)
    for first in range(0, len(dataset), size * mpu.dp_size):
        start = first + mpu.dp_rank * size
        samples = range(start, min(start + size, len(dataset)))
        if samples:
            totals += _batch_losses(model, task, dataset, samples)
        advance(min(size * mpu.dp_size, len(dataset) - first))
    if mpu.dp_size > 1:
        dist.all_reduce(totals, group=mpu.dp_group)
    sums, counts = model.from_last_stage(totals, tuple(totals.shape), totals.dtype).tolist()
    losses = {name: total / max(count, 1.0) for name, total, count in zip(names, sums, counts, strict=True)}
    parts = losses if len(losses) > 1 else {}
    metrics = {"loss": sum(losses.values()), **parts, "perplexity": perplexity(losses["lm_loss"])}
    return TaskResult(name, metrics, len(dataset), round(counts[names.index("lm_loss")]))


def _batch_losses(model: InferenceModel, task: ValidationTask, dataset: DatasetOf[Any], samples: range) -> Tensor:
    """Sum and count of each loss, fp64 ``[2, losses]``; zeros but for the counts on other stages than the last."""
    mpu = model.mpu
    batch = numbered_batch(task.run, dataset, samples).to(mpu.device)
    outputs = model.outputs(batch.inputs)
    losses = model_losses(model.config, mpu)
    sums, counts = [], []
    with torch.inference_mode():
        for name, loss in losses.items():
            labels, mask = batch.targets[name]
            sums.append(torch.zeros((), device=mpu.device) if outputs is None else loss(outputs, (labels, mask)))
            counts.append(mask.sum(dtype=torch.float64))
    return torch.stack([torch.stack(sums).double(), torch.stack(counts)])


def _wait_for_all() -> None:
    if dist.is_initialized():
        dist.barrier()
