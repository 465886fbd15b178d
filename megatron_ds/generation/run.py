"""One job from its start on every process to the last text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.engine.distributed import local_device, start_processes, stop_distributed
from megatron_ds.generation.generate import generate
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.options import Completion, GenerationJob, Request
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.utils.logging import logger

# Longer than ranks differ in reading their parts of large weights from a busy file system.
_TIMEOUT_MINUTES = 30.0


def run_job(job: GenerationJob, show: Callable[[Completion], None]) -> None:
    """Loads the model and goes on with all texts. Called by every process.

    Args:
        job: what to do.
        show: called on rank 0 for each text, in the order of the requests, as soon as its batch is done.

    Raises:
        CheckpointError: the checkpoint can't be read.
        TrainingError: the processes can't meet.
    """
    start = time.perf_counter()
    mpu = _join(job.tp_size, job.pp_size)
    reader = open_checkpoint(job.checkpoint)
    model = InferenceModel(reader.model, mpu, COMPUTE_DTYPES[job.precision])
    model.load(lambda name, spec: reader.shard(name, "weights", spec, mpu.tp_rank, mpu.tp_size))
    layout = f"TP{mpu.tp_size} x PP{mpu.pp_size} x DP{mpu.dp_size}"
    logger.info("%s, %s on %s; loaded in %.1f s", layout, job.precision, mpu.device.type, time.perf_counter() - start)
    for completion in completions(model, job):
        if mpu.global_rank == 0:
            show(completion)
    stop_distributed()


def completions(model: InferenceModel, job: GenerationJob) -> Iterator[Completion]:
    """All texts in the order of the requests, on every rank: each replica of the model makes its share of a round.

    Args:
        model: this rank's part of a replica.
        job: what to do.
    """
    mpu, size = model.mpu, job.batch_size
    for first in range(0, len(job.requests), size * mpu.dp_size):
        own = first + mpu.dp_rank * size
        yield from _of_all_replicas(_batch(model, job.requests[own : own + size], job), mpu)


def _batch(model: InferenceModel, requests: Sequence[Request], job: GenerationJob) -> list[Completion]:
    return generate(model, requests, job.decoding) if requests else []


def _of_all_replicas(own: list[Completion], mpu: ModelParallelUnit) -> list[Completion]:
    if mpu.dp_size == 1:
        return own
    shares: list[list[Completion]] = [[] for _ in range(mpu.dp_size)]
    dist.all_gather_object(shares, own, group=mpu.dp_group)
    return [completion for share in shares for completion in share]


def _join(tp_size: int, pp_size: int) -> ModelParallelUnit:
    """This process's place; alone, it needs no process group."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        device = local_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return ModelParallelUnit.offline(device=device)
    joined = start_processes(_TIMEOUT_MINUTES)
    return ModelParallelUnit.create(tp_size, pp_size, joined.device, timedelta(minutes=_TIMEOUT_MINUTES))
