"""Where numbers stop being finite: the first layer of a forward pass whose output is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


@contextmanager
def noting_not_finite(module: nn.Module, parameters: Iterable[tuple[str, nn.Parameter]]) -> Iterator[list[str]]:
    """Inside, layers that have parameters are looked at whenever they run.

    Args:
        module: this rank's part of the model.
        parameters: its parameters by canonical name.

    Yields:
        Names of the layers whose output was not finite, in the order in which they ran.
    """
    names = {id(parameter): name.rpartition(".")[0] for name, parameter in parameters}
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        tensors = [each for each in (output if isinstance(output, tuple) else (output,)) if isinstance(each, Tensor)]
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            found.append(name)

    with ExitStack() as hooks:
        for each in module.modules():
            owned = [names[id(parameter)] for parameter in each.parameters(recurse=False) if id(parameter) in names]
            if owned:
                hook = each.register_forward_hook(lambda _, __, output, name=owned[0]: look(name, output))
                hooks.callback(hook.remove)
        yield found


def first_of_all_ranks(found: list[str]) -> str | None:
    """The first layer that any rank has found, with its rank. Every rank calls it.

    Args:
        found: this rank's, in the order in which they ran.
    """
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, found[:1])
    # Ranks of an earlier stage have lower numbers.
    return next((f"{names[0]} on rank {rank}" for rank, names in enumerate(everyone) if names), None)
