"""A finetuned model on the examples of its task: the same numbers as finetuning's own evaluation has."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.models import model_losses
from megatron_ds.tasks.task import Task, TaskSet
from megatron_ds.tasks.zeroshot.job import FinetunedTask, Progress
from megatron_ds.tasks.zeroshot.results import TaskResult


def evaluate_finetuned(
    model: InferenceModel, job: FinetunedTask, batch_size: int, progress: Progress
) -> list[TaskResult]:
    """The task's metrics on each set, every example counted once, on all ranks. Every rank of every replica calls it.

    Args:
        model: this rank's part of a replica.
        job: the task and its sets.
        batch_size: examples that a replica runs together.
        progress: shows how far a set is.
    """
    results = []
    for each in job.sets:
        with progress(each.name, len(each.examples)) as advance:
            loss, scores = _loss_and_scores(model, job.task, each, batch_size, advance)
        metrics = {"loss": loss, **job.task.metrics(each, scores.numpy())}
        results.append(TaskResult(each.name, metrics, len(each.examples)))
    return results


def _loss_and_scores(
    model: InferenceModel, task: Task, each: TaskSet, batch_size: int, advance: Callable[[int], object]
) -> tuple[float, Tensor]:
    """The mean loss over the examples, and the scores of each, fp32 ``[N, classes or choices]`` on the CPU."""
    mpu, examples = model.mpu, each.examples
    width = _width(model, task, each)
    # Beside an example's scores stands the loss of the batch that it is the first of.
    found = torch.zeros(len(examples), width + 1, device=mpu.device)
    (loss_function,) = model_losses(model.config, mpu).values()
    for first in range(0, len(examples), batch_size * mpu.dp_size):
        start = first + mpu.dp_rank * batch_size
        own = range(start, min(start + batch_size, len(examples)))
        if own:
            batch = task.collate([examples[number] for number in own]).to(mpu.device)
            outputs = model.outputs(batch.inputs)
            if outputs is not None:
                assert isinstance(outputs, Tensor), "the head gives scores alone"
                (target,) = batch.targets.values()
                found[own.start : own.stop, :width] = outputs.float().view(len(own), width)
                found[own.start, width] = loss_function(outputs, target)
        advance(min(batch_size * mpu.dp_size, len(examples) - first))
    if mpu.dp_size > 1:
        # Each example was run by one replica, and is zero in the others.
        dist.all_reduce(found, group=mpu.dp_group)
    found = model.from_last_stage(found, tuple(found.shape), found.dtype).cpu()
    return float(found[:, width].double().sum()) / len(examples), found[:, :width]


def _width(model: InferenceModel, task: Task, each: TaskSet) -> int:
    """Scores of an example: of its classes, or one for each of its choices."""
    if model.config.output_head == "classification":
        assert model.config.num_classes is not None
        return model.config.num_classes
    inputs = task.collate([each.examples[0]]).inputs
    tokens = inputs if isinstance(inputs, Tensor) else inputs[0]
    return len(tokens)
