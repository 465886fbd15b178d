"""Dropout streams: which ranks draw the same numbers, and how they are found again after a restart.

Two streams exist on each rank. The default one is equal on all ranks of a tensor-parallel group: it serves whatever
those ranks compute alike (dropout of the residual stream). The second one, entered with `fork`, differs between
them: it serves what each rank computes for its own slice (dropout of its own heads' attention probabilities).

Both are seeded anew at each training step from (seed, step, position in the grid). A stream's state is therefore a
function of the step number, so nothing has to be saved for a run to resume with the same dropout masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on all `parts`, with no collisions between neighbouring values."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class TensorParallelRng:
    """The random stream that differs over a tensor-parallel group.

    Args:
        device: the device that dropout runs on; its generator is the one that is switched.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._state = self._default_state()

    def _default_state(self) -> torch.Tensor:
        if self._device.type == "cuda":
            return torch.cuda.get_rng_state(self._device)
        return torch.get_rng_state()

    def _set_default_state(self, state: torch.Tensor) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state, self._device)
        else:
            torch.set_rng_state(state)

    def seed(self, default_seed: int, tensor_parallel_seed: int) -> None:
        """Starts both streams anew.

        Args:
            default_seed: seed of the default stream; the same on all ranks of a tensor-parallel group.
            tensor_parallel_seed: seed of the stream inside `fork`; another one on each of those ranks.
        """
        torch.manual_seed(tensor_parallel_seed)
        self._state = self._default_state()
        torch.manual_seed(default_seed)

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Draws from this stream inside the block, and from the default one again afterwards."""
        outside = self._default_state()
        self._set_default_state(self._state)
        try:
            yield
        finally:
            self._state = self._default_state()
            self._set_default_state(outside)

    def recompute_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for the forward pass and for its recomputation, with the same random numbers in both.

        For ``torch.utils.checkpoint.checkpoint(..., context_fn=...)``, which looks after the default stream only.
        """
        recorded: list[torch.Tensor] = []

        @contextmanager
        def forward() -> Iterator[None]:
            recorded.append(self._state)
            yield

        @contextmanager
        def recompute() -> Iterator[None]:
            later, self._state = self._state, recorded[0]
            try:
                yield
            finally:
                self._state = later

        return forward(), recompute()
