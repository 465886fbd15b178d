"""`ModelWeights`: a whole model's weights, read one at a time, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models import model_layers, whole_model_specs
from megatron_ds.mpu import ModelParallelUnit, ShardSpec, Topology


@dataclass(frozen=True)
class ModelWeights:
    """The weights of a model, by canonical name: what every converter reads and what every importer makes.

    Reading one parameter at a time keeps a tool's memory at about one layer, whatever the size of the model.

    Attributes:
        model: the architecture, with its vocabulary size known.
        specs: canonical name → how a parameter is cut, in the model's order.
        read: the whole parameter of a name, in its own dtype: ``specs[name].full_shape``, without vocabulary padding. A
            tensor that it returns may be a view of a mapped file: it is not to be written to.
    """

    model: ModelConfig
    specs: Mapping[str, ShardSpec]
    read: Callable[[str], Tensor]

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole parameters, in the model's order."""
        for name in self.specs:
            yield name, self.read(name)


def model_specs(model: ModelConfig, topology: Topology | None = None) -> dict[str, ShardSpec]:
    """How every parameter of `model` is cut, by canonical name, in the model's order.

    Args:
        model: the architecture, with its vocabulary size known.
        topology: the grid of ranks; its tensor-parallel size says how the vocabulary is padded.
    """
    return whole_model_specs(partial(model_layers, model), topology)


def layer_owners(model: ModelConfig) -> list[str]:
    """For each entry of the model's list of layers, the name of the layer whose weights it uses."""
    layers = model_layers(model, ModelParallelUnit.offline(device="meta"))
    return [layer.tied_to or layer.name for layer in layers]
