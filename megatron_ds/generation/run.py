"""One job from its start on every process to the last text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch.distributed as dist

from megatron_ds.engine.distributed import stop_distributed
from megatron_ds.generation.generate import generate
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.load import join, load_model
from megatron_ds.generation.options import Completion, Decoding, GenerationJob, Request
from megatron_ds.mpu import ModelParallelUnit


def run_job(job: GenerationJob, show: Callable[[Completion], None]) -> None:
    """Loads the model and goes on with all texts. Called by every process.

    Args:
        job: what to do.
        show: called on rank 0 for each text, in the order of the requests, as soon as its batch is done.

    Raises:
        CheckpointError: the checkpoint can't be read.
        TrainingError: the processes can't meet.
    """
    mpu = join(job.tp_size, job.pp_size)
    model = load_model(job.checkpoint, job.precision, mpu)
    for completion in completions(model, job.requests, job.decoding, job.batch_size):
        if mpu.global_rank == 0:
            show(completion)
    stop_distributed()


def completions(
    model: InferenceModel,
    requests: Sequence[Request],
    decoding: Decoding,
    batch_size: int,
    is_done: Callable[[Sequence[int]], bool] = lambda _: False,
) -> Iterator[Completion]:
    """All texts in the order of the requests, on every rank: each replica of the model makes its share of a round.

    Args:
        model: this rank's part of a replica.
        requests: the texts.
        decoding: how they go on.
        batch_size: texts that a replica goes on with at the same time.
        is_done: see `generate`.
    """
    mpu = model.mpu
    for first in range(0, len(requests), batch_size * mpu.dp_size):
        start = first + mpu.dp_rank * batch_size
        own = requests[start : start + batch_size]
        yield from _of_all_replicas(generate(model, own, decoding, is_done) if own else [], mpu)


def _of_all_replicas(own: list[Completion], mpu: ModelParallelUnit) -> list[Completion]:
    if mpu.dp_size == 1:
        return own
    shares: list[list[Completion]] = [[] for _ in range(mpu.dp_size)]
    dist.all_gather_object(shares, own, group=mpu.dp_group)
    return [completion for share in shares for completion in share]
