"""Which rank sits where: the three axes of parallelism and the groups along each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["pipe", "data", "model"]


@dataclass(frozen=True)
class Coordinates:
    """A rank's place on the three axes."""

    pipe: int
    data: int
    model: int


@dataclass(frozen=True)
class Topology:
    """A grid of ranks with the axes pipe, data and model, the last varying fastest.

    This is DeepSpeed's own order for pipelines (`PipeModelDataParallelTopology`):
    ``rank = (pipe * dp_size + data) * tp_size + model``. Tensor-parallel peers are neighbours, so they share a
    host's fast links.

    Attributes:
        tp_size: ranks that share each layer.
        pp_size: pipeline stages.
        dp_size: replicas that split the batch.
    """

    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.tp_size * self.pp_size * self.dp_size

    def rank(self, pipe: int, data: int, model: int) -> int:
        """The global rank at these coordinates."""
        return (pipe * self.dp_size + data) * self.tp_size + model

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of a global rank."""
        rest, model = divmod(rank, self.tp_size)
        pipe, data = divmod(rest, self.dp_size)
        return Coordinates(pipe, data, model)

    def groups(self, *axes: Axis) -> list[list[int]]:
        """The groups of ranks that differ only along `axes`, each in ascending order.

        ``groups("model")`` are the tensor-parallel groups, ``groups("pipe", "model")`` the groups that hold one
        copy of the model between them.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            place = self.coordinates(rank)
            key = tuple(getattr(place, axis) for axis in ("pipe", "data", "model") if axis not in axes)
            groups.setdefault(key, []).append(rank)
        return list(groups.values())
