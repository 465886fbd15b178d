"""`LayerDef`: one entry of the list that is the only definition of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

Activations = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class LayerDef:
    """One layer: how to build it, and the name under which its parameters are known everywhere.

    A layer is called with what the layer before it returned: one tensor, or a tuple of tensors of which only the
    floating-point ones carry gradients. The first layer gets the batch's tokens.

    Attributes:
        name: prefix of the canonical names of its parameters, such as ``layers.3``.
        module_type: class of the module; ``--pp-partition-method type:REGEX`` looks at its name.
        build: makes the module, without values in its parameters.
        tied_to: the name of an earlier layer whose module this one uses instead of having its own.
        forward: what to call instead of the module itself; gets the module and its input.
        recompute: activation checkpointing applies to this layer.
    """

    name: str
    module_type: type[nn.Module]
    build: Callable[[], nn.Module]
    tied_to: str | None = None
    forward: Callable[[nn.Module, Activations], Activations] | None = None
    recompute: bool = False


def tied_names(layers: Sequence[LayerDef]) -> set[str]:
    """Names of the layers whose module is used again by a later one."""
    return {layer.tied_to for layer in layers if layer.tied_to is not None}


def named_layer_parameters(layer: LayerDef, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The canonical names of a layer's parameters, with the parameters."""
    owner = layer.tied_to or layer.name
    for name, parameter in module.named_parameters():
        yield f"{owner}.{name}", parameter
