"""`SequentialModel`: `LayerDef`s run one after the other in one process, a whole model or one stage of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from megatron_ds.models.layer_def import Activations, LayerDef

Step = Callable[[Activations], Activations]


def _attach(root: nn.Module, name: str, module: nn.Module) -> None:
    """Registers `module` under a dotted name, so that its parameters carry their canonical names."""
    *parents, leaf = name.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            root.add_module(parent, nn.Module())
        root = getattr(root, parent)
    root.add_module(leaf, module)


class SequentialModel(nn.Module):
    """Layers in one module: the whole model for a pipeline size of one, or a stage's part of it.

    ``named_parameters()`` gives the canonical names; `num_layers` is the length of the definition; `steps` are what
    runs, one after the other.

    Args:
        layers: the model's definition, or a stretch of it. A layer whose module belongs to an earlier stage gets a copy
            of its own, under the same canonical names.
        build: makes a layer's module; `LayerDef.build` by default.
        join: puts layers that are run again in the backward pass together to one step each; see `with_recomputation`.
    """

    def __init__(
        self,
        layers: Sequence[LayerDef],
        build: Callable[[LayerDef], nn.Module] = lambda layer: layer.build(),
        join: Callable[[Sequence[Step]], Sequence[Step]] = lambda steps: steps,
    ) -> None:
        super().__init__()
        modules: dict[str, nn.Module] = {}
        steps: list[Step] = []
        for layer in layers:
            owner = layer.tied_to or layer.name
            if owner not in modules:
                modules[owner] = build(layer)
                _attach(self, owner, modules[owner])
            steps.append(_step(layer, modules[owner]))
        self.num_layers = len(steps)
        self.steps = join(steps)

    def forward(self, inputs: Activations) -> Activations:
        """Runs all layers, from tokens ``[B, S]`` to what the last one returns."""
        for step in self.steps:
            inputs = step(inputs)
        return inputs


def _step(layer: LayerDef, module: nn.Module) -> Step:
    forward = layer.forward
    if forward is None:
        return module
    return lambda inputs: forward(module, inputs)
