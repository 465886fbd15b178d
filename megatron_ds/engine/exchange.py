"""Objects that ranks pass to each other now and then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")

# Whoever writes a checkpoint may take as long as that takes. A rank that is gone is noticed at once.
_LONGEST_WAIT = timedelta(days=7)


class Exchange:
    """Passes objects over a process group.

    Args:
        group: the group; that of all ranks by default.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group

    @classmethod
    def for_background(cls) -> Exchange:
        """One for a thread of its own, over all ranks. Every rank calls it."""
        return cls(dist.new_group(backend="gloo", timeout=_LONGEST_WAIT))

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order. Every rank calls it."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def from_rank_0(self, value: T) -> T:
        """Rank 0's value. Every rank calls it."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]
