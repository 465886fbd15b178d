"""The whole model without its weights: names, shapes and cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from megatron_ds.models.layer_def import LayerDef, named_layer_parameters
from megatron_ds.mpu import ModelParallelUnit, ShardSpec, Topology, shard_spec


def whole_model_specs(
    layers: Callable[[ModelParallelUnit], Sequence[LayerDef]], topology: Topology | None = None
) -> dict[str, ShardSpec]:
    """How every parameter of a model is cut, by canonical name, in the model's order.

    Builds the layers of one rank on the meta device, which takes no memory.

    Args:
        layers: makes the model's definition for a rank.
        topology: the grid of ranks; only its tensor-parallel size matters here.
    """
    specs: dict[str, ShardSpec] = {}
    for layer in layers(ModelParallelUnit.offline(topology, device="meta")):
        if layer.tied_to is None:
            with torch.device("meta"):
                module = layer.build()
            for name, parameter in named_layer_parameters(layer, module):
                specs[name] = shard_spec(parameter)
    return specs
