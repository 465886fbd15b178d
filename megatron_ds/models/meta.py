"""The whole model without its weights: names, shapes and cuts."""

from __future__ import annotations

import torch

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.gpt import gpt_layers
from megatron_ds.models.layer_def import named_layer_parameters
from megatron_ds.mpu import ModelParallelUnit, ShardSpec, Topology, shard_spec


def whole_model_specs(config: ModelConfig, topology: Topology | None = None) -> dict[str, ShardSpec]:
    """How every parameter of a GPT is cut, by canonical name, in the model's order.

    Builds the layers of one rank on the meta device, which takes no memory.

    Args:
        config: the architecture, with its vocabulary size known.
        topology: the grid of ranks; only its tensor-parallel size matters here.
    """
    mpu = ModelParallelUnit.offline(topology, device="meta")
    specs: dict[str, ShardSpec] = {}
    for layer in gpt_layers(config, mpu):
        if layer.tied_to is None:
            with torch.device("meta"):
                module = layer.build()
            for name, parameter in named_layer_parameters(layer, module):
                specs[name] = shard_spec(parameter)
    return specs
