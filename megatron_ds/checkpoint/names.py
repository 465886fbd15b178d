"""How DeepSpeed names a model's parameters and deals them to stages, as a manifest tells it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from megatron_ds.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Names:
    """From canonical names to places in DeepSpeed's files.

    Attributes:
        manifest: of the checkpoint.
    """

    manifest: Manifest

    @cached_property
    def _owners(self) -> dict[str, str]:
        """Canonical name of a parameter → name of its layer."""
        layers = set(self.manifest.layers)
        return {name: _owner(name, layers) for name in self.manifest.parameters}

    def layer(self, name: str) -> int:
        """The place of a parameter's layer in the list of layers: of the first one, where two share it."""
        return self.manifest.layers.index(self._owners[name])

    def suffix(self, name: str) -> str:
        """A parameter's name inside its layer."""
        return name[len(self._owners[name]) + 1 :]

    def of_layer(self, layer: int) -> list[str]:
        """Canonical names of the parameters that a layer of the list has of its own, in the model's order."""
        return [name for name in self.manifest.parameters if self.layer(name) == layer]

    def stage(self, name: str) -> int:
        """The first pipeline stage that holds a parameter."""
        layer = self.layer(name)
        return next(stage for stage, (start, stop) in enumerate(self.manifest.stages) if start <= layer < stop)

    def in_deepspeed(self, name: str) -> str:
        """A parameter's name in DeepSpeed's files."""
        if self.manifest.layout.pp_size == 1:
            return name
        is_tied = self.manifest.layers.count(self._owners[name]) > 1
        return f"tied_modules.{name}" if is_tied else f"{self.layer(name)}.{self.suffix(name)}"

    def in_optimizer(self, stage: int) -> list[str]:
        """Parameters of a stage in the order in which its optimizer got them: matrices, then what does not decay."""
        start, stop = self.manifest.stages[stage]
        owners = list(dict.fromkeys(self.manifest.layers[start:stop]))
        named = [name for owner in owners for name in self.manifest.parameters if self._owners[name] == owner]
        return sorted(named, key=lambda name: len(self.manifest.parameters[name]["full_shape"]) < 2)


def _owner(name: str, layers: set[str]) -> str:
    parts = name.split(".")
    return next(owner for end in range(len(parts), 0, -1) if (owner := ".".join(parts[:end])) in layers)
