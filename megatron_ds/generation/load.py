"""A checkpoint's model on the processes of a job that does not train."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch

from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.engine.distributed import local_device, start_processes
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.utils.logging import logger

# Longer than ranks differ in reading their parts of large weights from a busy file system.
_TIMEOUT_MINUTES = 30.0


def join(tp_size: int, pp_size: int) -> ModelParallelUnit:
    """This process's place; alone, it needs no process group.

    Args:
        tp_size: tensor-parallel size.
        pp_size: pipeline stages; the other processes are replicas.

    Raises:
        TrainingError: the processes can't meet.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        device = local_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return ModelParallelUnit.offline(device=device)
    joined = start_processes(_TIMEOUT_MINUTES)
    return ModelParallelUnit.create(tp_size, pp_size, joined.device, timedelta(minutes=_TIMEOUT_MINUTES))


def load_model(
    checkpoint: Path,
    precision: str,
    mpu: ModelParallelUnit,
    *,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
) -> InferenceModel:
    """This rank's part of a checkpoint's model.

    Args:
        checkpoint: its own folder.
        precision: of weights and computing: ``fp32``, ``bf16`` or ``fp16``.
        mpu: where this rank sits.
        reset_position_ids: see `InferenceModel`.
        reset_attention_mask: likewise.

    Raises:
        CheckpointError: the checkpoint can't be read.
    """
    start = time.perf_counter()
    reader = open_checkpoint(checkpoint)
    model = InferenceModel(
        reader.model,
        mpu,
        COMPUTE_DTYPES[precision],
        reset_position_ids=reset_position_ids,
        reset_attention_mask=reset_attention_mask,
    )
    model.load(lambda name, spec: reader.shard(name, "weights", spec, mpu.tp_rank, mpu.tp_size))
    layout = f"TP{mpu.tp_size} x PP{mpu.pp_size} x DP{mpu.dp_size}"
    logger.info("%s, %s on %s; loaded in %.1f s", layout, precision, mpu.device.type, time.perf_counter() - start)
    return model
