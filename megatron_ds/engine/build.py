"""The model-wrapping layer: from a list of layers to a `TrainEngine`, and the only ``deepspeed.initialize``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import deepspeed
from torch import nn

from megatron_ds.config.blocks import RunConfig
from megatron_ds.engine.base import LearningRate, TrainEngine
from megatron_ds.engine.construction import LayerBuilder
from megatron_ds.engine.grad_norm import ClipBeforeStep
from megatron_ds.engine.losses import LossSum
from megatron_ds.engine.optimizer import build_optimizer, offloads_optimizer
from megatron_ds.engine.pipeline import PipelineTrainEngine, build_pipeline_module, named_stage_parameters
from megatron_ds.engine.zero import ZeroTrainEngine
from megatron_ds.models import (
    LayerDef,
    LossFunction,
    Recompute,
    SequentialModel,
    initialize_weights,
    with_recomputation,
)
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ModelParallelUnit


def build_engine(
    run: RunConfig,
    deepspeed_config: dict[str, Any],
    layers: Sequence[LayerDef],
    losses: Mapping[str, LossFunction],
    mpu: ModelParallelUnit,
    learning_rate: LearningRate,
) -> TrainEngine:
    """Builds the model on this rank, fills it, and puts DeepSpeed around it.

    Args:
        run: the resolved run.
        deepspeed_config: what DeepSpeed gets: complete, checked, without our block.
        layers: the model.
        losses: what the model is trained on the sum of, by name.
        mpu: where this rank sits.
        learning_rate: the rate of the n-th update, counted from 1.

    Returns:
        A `PipelineTrainEngine` when there is a pipeline, else a `ZeroTrainEngine`.
    """
    recompute = Recompute.of(run.training)
    loss_sum = LossSum(losses, mpu)
    builder = LayerBuilder(COMPUTE_DTYPES[run.training.precision], mpu, recompute)
    join = partial(with_recomputation, allowed=[layer.recompute for layer in layers], recompute=recompute, mpu=mpu)
    if mpu.pp_size > 1:
        module: nn.Module = build_pipeline_module(
            layers, builder, loss_sum, mpu, run.parallel.pp_partition_method, recompute
        )
        named = list(named_stage_parameters(module, layers))
        initialize_weights(named, run.training.seed, mpu)
    elif run.zero_stage == 3:
        # No `dtype` argument: on a CPU without fp16, DeepSpeed 0.19.8 then takes bfloat16 whatever it says.
        with deepspeed.zero.Init(data_parallel_group=mpu.dp_group, config_dict_or_path=deepspeed_config, mpu=mpu):
            module = SequentialModel(layers, builder, join)
        named = list(module.named_parameters())
        initialize_weights(named, run.training.seed, mpu, gather=_gather_for_writing)
    else:
        module = SequentialModel(layers, builder, join)
        named = list(module.named_parameters())
        initialize_weights(named, run.training.seed, mpu)

    optimizer = build_optimizer(
        (parameter for _, parameter in named),
        run.optimizer,
        on_cuda=mpu.device.type == "cuda",
        offload=offloads_optimizer(deepspeed_config),
    )
    clip = ClipBeforeStep(optimizer, run.optimizer.clip_grad, mpu) if run.zero_stage == 0 else None
    if clip is not None:
        deepspeed_config = {**deepspeed_config, "gradient_clipping": 0.0}
    with redirect_stdout(StringIO()):  # reports of memory in use, printed whatever the log level
        deepspeed_engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=optimizer,
            config=deepspeed_config,
            # A PipelineModule brings a grid of its own, in the same order as ours.
            mpu=None if mpu.pp_size > 1 else mpu,
            dist_init_required=False,
        )
    common: dict[str, Any] = {"seed": run.training.seed, "learning_rate": learning_rate, "clip": clip}
    if mpu.pp_size > 1:
        return PipelineTrainEngine(layers, deepspeed_engine, loss_sum, mpu, **common)
    return ZeroTrainEngine(deepspeed_engine, loss_sum, mpu, **common)


def _gather_for_writing(parameter: nn.Parameter) -> AbstractContextManager[object]:
    """Makes a ZeRO-3 parameter whole, and cuts it over the data-parallel ranks again afterwards."""
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    context: AbstractContextManager[object] = deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)
    return context
