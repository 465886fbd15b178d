"""`PipelineTrainEngine`: the list of layers dealt to stages, under DeepSpeed's 1F1B schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from megatron_ds.config.partition import counted_layers, matching_classes, stage_bounds
from megatron_ds.config.rules import no_layer_matches
from megatron_ds.data.batch import TrainingBatch
from megatron_ds.engine.construction import LayerBuilder
from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase
from megatron_ds.engine.losses import LossSum
from megatron_ds.engine.stage_norm import sum_norm_over_stages_once
from megatron_ds.errors import ConfigError
from megatron_ds.models import (
    NO_RECOMPUTE,
    Activations,
    LayerDef,
    ParallelTransformerLayer,
    Recompute,
    named_layer_parameters,
    tied_names,
    with_recomputation,
)
from megatron_ds.mpu import ModelParallelUnit


class _Spec(LayerSpec):  # type: ignore[misc]
    """DeepSpeed's recipe for one of our layers."""

    def __init__(self, layer: LayerDef, builder: LayerBuilder) -> None:
        super().__init__(layer.module_type)
        self._layer = layer
        self._builder = builder

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 - DeepSpeed's signature
        return self._builder(self._layer)


class _TiedSpec(TiedLayerSpec):  # type: ignore[misc]
    """The same for a layer that shares its module with another one."""

    def __init__(self, layer: LayerDef, builder: LayerBuilder) -> None:
        super().__init__(layer.tied_to or layer.name, layer.module_type, forward_fn=layer.forward)
        self._layer = layer
        self._builder = builder

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 - DeepSpeed's signature
        return self._builder(self._layer)


class StageModule(PipelineModule):  # type: ignore[misc]
    """One stage's layers, with those that are run again in the backward pass joined to one step each.

    Args:
        recompute: what is run again.
        allowed: for each layer of the whole model, whether it may be run again.
        mpu: where this rank sits.
        *arguments: DeepSpeed's.
        **named_arguments: DeepSpeed's.
    """

    def __init__(
        self,
        recompute: Recompute,
        allowed: Sequence[bool],
        mpu: ModelParallelUnit,
        *arguments: Any,
        **named_arguments: Any,
    ) -> None:
        super().__init__(*arguments, **named_arguments)
        own = allowed[self._local_start : self._local_stop]
        self._steps = with_recomputation(self.forward_funcs, own, recompute, mpu)

    def _partition_layers(self, method: str = "uniform") -> None:
        counts = counted_layers(method)
        if counts is None:
            super()._partition_layers(method)
            return
        blocks = [issubclass(spec.typename, ParallelTransformerLayer) for spec in self._layer_specs]
        self.parts = stage_bounds(blocks, counts)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(self.parts[stage], self.parts[stage + 1])

    def forward(self, inputs: Activations) -> Activations:
        """Runs the stage's layers."""
        for step in self._steps:
            inputs = step(inputs)
        return inputs


def build_pipeline_module(
    layers: Sequence[LayerDef],
    builder: LayerBuilder,
    losses: LossSum,
    mpu: ModelParallelUnit,
    partition_method: str,
    recompute: Recompute = NO_RECOMPUTE,
) -> StageModule:
    """Deals `layers` to stages and builds this stage's modules, without values in their parameters.

    Args:
        layers: the whole model.
        builder: makes modules.
        losses: what the model is trained on; runs on the last stage.
        mpu: where this rank sits.
        partition_method: DeepSpeed's ``type:REGEX``, ``parameters`` or ``uniform``, or our ``layers:N,N,…``.
        recompute: what is run again in the backward pass.
    """
    _check_partition(layers, partition_method)
    tied = tied_names(layers)
    specs = [
        (_TiedSpec if layer.tied_to is not None or layer.name in tied else _Spec)(layer, builder) for layer in layers
    ]
    topology = PipeModelDataParallelTopology(num_pp=mpu.pp_size, num_mp=mpu.tp_size, num_dp=mpu.dp_size)
    with redirect_stdout(StringIO()):  # its own list of layers, printed whatever the log level
        module = StageModule(
            recompute,
            [layer.recompute for layer in layers],
            mpu,
            specs,
            topology=topology,
            loss_fn=losses,
            partition_method=partition_method,
        )
    place = topology.get_coord(mpu.global_rank)
    assert (place.pipe, place.data, place.model) == (mpu.pp_rank, mpu.dp_rank, mpu.tp_rank), "one order of ranks"
    return module


def _check_partition(layers: Sequence[LayerDef], partition_method: str) -> None:
    """Raises a ConfigError, on all ranks, where ``type:REGEX`` matches no layer that this model has."""
    kind, _, pattern = partition_method.partition(":")
    names = list(dict.fromkeys(layer.module_type.__name__ for layer in layers))
    if kind == "type" and not matching_classes(pattern, names):
        raise ConfigError(no_layer_matches(partition_method, names))


def named_stage_parameters(module: PipelineModule, layers: Sequence[LayerDef]) -> Iterator[tuple[str, nn.Parameter]]:
    """Canonical names and parameters of this stage, a tied module once."""
    seen: set[str] = set()
    for index in range(module._local_start, module._local_stop):
        layer = layers[index]
        owner = layer.tied_to or layer.name
        if owner in seen:
            continue
        seen.add(owner)
        stage_module = module.tied_modules[owner] if owner in module.tied_modules else getattr(module, str(index))
        yield from named_layer_parameters(layer, stage_module)


def _reduce_tied_gradients(engine: Any) -> None:
    """Sums a tied weight's gradient over the stages that hold a copy, wherever the optimizer accumulates it.

    DeepSpeed's own instruction looks in one place only and leaves the copies to diverge when gradients accumulate
    in another dtype than the model's.
    """
    for weight, group in engine.module.get_tied_weights_and_groups():
        if engine.using_bf16_optimizer:
            gradient = weight._hp_grad
        elif getattr(engine.optimizer, "use_grad_accum_attribute", False):
            gradient = weight.grad_accum
        else:
            gradient = weight.grad
        if gradient is not None:
            dist.all_reduce(gradient, group=group)


class PipelineTrainEngine(DeepSpeedEngineBase):
    """Runs a `PipelineModule`, for a pipeline size above one.

    Args:
        layers: the whole model, for the canonical names.
        *arguments: see `DeepSpeedEngineBase`.
        **named_arguments: see `DeepSpeedEngineBase`.
    """

    def __init__(self, layers: Sequence[LayerDef], *arguments: Any, **named_arguments: Any) -> None:
        super().__init__(*arguments, **named_arguments)
        self._layers = layers
        engine = self.deepspeed_engine
        # The map holds functions, not method names, so overriding a method would change nothing.
        engine._INSTRUCTION_MAP = MappingProxyType(
            {**engine._INSTRUCTION_MAP, schedule.ReduceTiedGrads: _reduce_tied_gradients}
        )
        sum_norm_over_stages_once(engine.optimizer, self.mpu)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Canonical names and parameters of this stage, a tied module once."""
        return named_stage_parameters(self.deepspeed_engine.module, self._layers)

    def stages(self) -> list[range]:
        """Places in the model's list of layers that each pipeline stage holds."""
        return [range(start, stop) for start, stop in pairwise(self.deepspeed_engine.module.parts)]

    def _run_step(self, batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]) -> None:
        self.deepspeed_engine.train_batch(_pipeline_inputs(batches, targets))

    def _run_forward(self, batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]) -> None:
        engine = self.deepspeed_engine
        # Buffers between stages have the shape of the first batch that came through.
        engine.reset_activation_shape()
        engine.eval_batch(_pipeline_inputs(batches, targets), num_micro_batches=len(batches))
        engine.reset_activation_shape()


def _pipeline_inputs(
    batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]
) -> Iterator[tuple[Activations, tuple[Tensor, ...]]]:
    """What the first stage takes in, and what the losses on the last stage compare with."""
    for batch, batch_targets in zip(batches, targets, strict=True):
        yield batch.inputs, batch_targets
