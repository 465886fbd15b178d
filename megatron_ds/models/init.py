"""Initial weights, drawn by canonical name: the same at every layout.

Each parameter has a random generator of its own, seeded from the run's seed and the parameter's name. The whole
parameter is drawn in fp32 and this rank's shard cut out of it. CPU and CUDA generators draw different numbers, so
"the same" holds between runs on devices of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from megatron_ds.mpu import ModelParallelUnit, derive_seed, shard_spec

Gather = Callable[[nn.Parameter], AbstractContextManager[object]]


def initialize_weights(
    parameters: Iterable[tuple[str, nn.Parameter]],
    seed: int,
    mpu: ModelParallelUnit,
    gather: Gather = lambda _: nullcontext(),
) -> None:
    """Fills parameters that ask for it (`init_std`) with normal numbers, or zeros where it is 0.

    The rows of values in a fused projection may ask for a factor of their own (`init_value_gain`).

    Parameters without that mark, such as those of layer norms, keep the values that their module gave them.

    Args:
        parameters: canonical names and parameters of this rank.
        seed: the run's seed.
        mpu: where this rank sits.
        gather: makes a parameter whole (over data-parallel ranks) while its context is open; for ZeRO-3.
    """
    for name, parameter in parameters:
        std = getattr(parameter, "init_std", None)
        if std is None:
            continue
        with gather(parameter), torch.no_grad():
            if std == 0:
                parameter.zero_()
                continue
            spec = shard_spec(parameter)
            generator = torch.Generator(parameter.device).manual_seed(derive_seed("weights", seed, name))
            full = torch.empty(spec.full_shape, device=parameter.device, dtype=torch.float32)
            full.normal_(0.0, std, generator=generator)
            if (gain := getattr(parameter, "init_value_gain", 1.0)) != 1.0:
                spec.value_rows(full).mul_(gain)
            parameter.copy_(spec.shard(full, mpu.tp_rank, mpu.tp_size))
