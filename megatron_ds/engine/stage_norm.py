"""One sum of the gradient norm over stages, however many parameter groups each of them has.

DeepSpeed's ZeRO-1 optimizer sums the norm of each of its parameter groups over the pipeline. A stage without biases
and norms, such as one that holds embeddings alone, has one group where the others have two: it would leave the others
waiting for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.mpu import ModelParallelUnit

# What DeepSpeed's norms are where they are not finite.
_NOT_FINITE = -1.0


def sum_norm_over_stages_once(optimizer: Any, mpu: ModelParallelUnit) -> None:
    """Replaces the sums per group by one sum of the whole.

    Args:
        optimizer: DeepSpeed's. One that sums over stages only once by itself is left as it is.
        mpu: where this rank sits.
    """
    own_norm: Callable[[], Tensor] | None = getattr(optimizer, "scaled_global_norm", None)
    if own_norm is None:
        return

    def global_norm() -> Tensor:
        with _without_sums_over_stages(optimizer):
            norm = own_norm()
        squared = torch.where(norm == _NOT_FINITE, torch.inf, norm.square())
        dist.all_reduce(squared, group=mpu.model_parallel_group)
        return torch.where(squared.isfinite(), squared.sqrt(), _NOT_FINITE)

    optimizer.scaled_global_norm = global_norm


@contextmanager
def _without_sums_over_stages(optimizer: Any) -> Iterator[None]:
    """Inside, norms are summed over data-parallel ranks only, which all have the same groups.

    Outside, the same method makes the stages agree on an overflow, and has to stay.
    """
    reduce = optimizer._model_parallel_all_reduce
    optimizer._model_parallel_all_reduce = lambda tensor, op: None  # noqa: ARG005 - DeepSpeed's arguments
    try:
        yield
    finally:
        optimizer._model_parallel_all_reduce = reduce
