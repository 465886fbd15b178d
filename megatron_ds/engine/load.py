"""From a checkpoint of any layout into DeepSpeed's optimizers: each rank reads the numbers that it will hold.

DeepSpeed's own loading wants the same layout back, and unpickles whatever a file holds. Here a rank asks the reader for
its shard of each parameter, and copies of that the stretch that its optimizer keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.checkpoint.zero_pieces import MOMENTS, Kind
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ModelParallelUnit, shard_spec


class Shards(Protocol):
    """Where a rank's shards come from.

    Attributes:
        mpu: where this rank sits.
        with_moments: the optimizer's moments are wanted, not only weights.
        updates: optimizer updates made before.
    """

    @property
    def mpu(self) -> ModelParallelUnit: ...  # noqa: D102 - see above

    @property
    def with_moments(self) -> bool: ...  # noqa: D102

    @property
    def updates(self) -> int: ...  # noqa: D102

    def __call__(self, name: str, kind: Kind, parameter: nn.Parameter) -> Tensor:
        """This rank's shard of a parameter or of one of its states, in the parameter's own shape."""


@dataclass(frozen=True)
class WholeWeights:
    """A rank's shards of weights that come without an optimizer's state, from any program.

    Attributes:
        weights: the whole model's.
        mpu: where this rank sits.
    """

    weights: ModelWeights
    mpu: ModelParallelUnit
    with_moments: bool = False
    updates: int = 0

    def __call__(self, name: str, kind: Kind, parameter: nn.Parameter) -> Tensor:  # noqa: ARG002 - one value for all
        """This rank's shard of a parameter, in the parameter's own shape."""
        return shard_spec(parameter).shard(self.weights.read(name), self.mpu.tp_rank, self.mpu.tp_size)


@dataclass(frozen=True)
class ShardReader:
    """A rank's shards of a checkpoint.

    Attributes:
        checkpoint: the checkpoint.
        mpu: where this rank sits.
        with_moments: the optimizer's moments are wanted, not only weights.
        updates: optimizer updates made before the checkpoint.
    """

    checkpoint: CheckpointReader
    mpu: ModelParallelUnit
    with_moments: bool
    updates: int

    def __call__(self, name: str, kind: Kind, parameter: nn.Parameter) -> Tensor:
        """This rank's shard of a parameter or of one of its states, in the parameter's own shape."""
        if kind == "weights" and parameter.dtype != COMPUTE_DTYPES[self.checkpoint.manifest.layout.precision]:
            kind = "fp32"  # rounding once, to this run's precision
        return self.checkpoint.shard(name, kind, shard_spec(parameter), self.mpu.tp_rank, self.mpu.tp_size)


@torch.no_grad()
def load_parameters(engine: Any, named: Iterable[tuple[str, nn.Parameter]], shards: Shards) -> None:
    """Fills a DeepSpeed engine's weights and optimizer.

    Args:
        engine: what ``deepspeed.initialize`` returned.
        named: this rank's parameters, by canonical name.
        shards: gives their values.
    """
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        _load_stage_3(optimizer, named, shards)
    elif hasattr(optimizer, "optimizer"):
        _load_stage_1_and_2(optimizer, named, shards)
    else:
        _load_plain(optimizer, named, shards)


def _load_plain(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]], shards: Shards) -> None:
    """ZeRO-0 in fp32: PyTorch's optimizer over the parameters themselves."""
    for name, parameter in named:
        parameter.copy_(shards(name, "fp32", parameter))
        if shards.with_moments:
            state = _moments(optimizer, parameter, shards.updates)
            for kind in MOMENTS:
                state[kind].copy_(shards(name, kind, parameter))


def _load_stage_1_and_2(optimizer: Any, named: Iterable[tuple[str, nn.Parameter]], shards: Shards) -> None:
    """Whole weights on every rank; of each flat group in fp32, a stretch that begins and ends anywhere."""
    # BF16_Optimizer has another name for the same.
    flats = getattr(optimizer, "single_partition_of_fp32_groups", None) or optimizer.fp32_groups_flat_partition
    for name, parameter in named:
        parameter.copy_(shards(name, "weights", parameter))
        place: Any = parameter._hp_mapping  # type: ignore[attr-defined]
        if place is None:
            continue  # all of it belongs to other ranks
        flat, theirs, ours = flats[place.param_group_index], place.lp_fragment_address, place.hp_fragment_address
        targets: dict[Kind, Tensor] = {"fp32": flat}
        if shards.with_moments:
            state = _moments(optimizer.optimizer, flat, shards.updates)
            targets |= {kind: state[kind] for kind in MOMENTS}
        for kind, target in targets.items():
            values = shards(name, kind, parameter).reshape(-1).narrow(0, theirs.start, theirs.numel)
            target.narrow(0, ours.start, ours.numel).copy_(values)


def _load_stage_3(optimizer: Any, named: Iterable[tuple[str, nn.Parameter]], shards: Shards) -> None:
    """Of each parameter an equal piece, the last one padded with zeros."""
    flats = optimizer.fp32_partitioned_groups_flat
    with _resting(optimizer):
        for name, parameter in named:
            group, start, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
            targets: dict[Kind, Tensor] = {"fp32": flats[group]}
            if shards.with_moments:
                state = _moments(optimizer.optimizer, flats[group], shards.updates)
                targets |= {kind: state[kind] for kind in MOMENTS}
            for kind, target in targets.items():
                values = shards(name, kind, parameter).reshape(-1)
                values = values[shards.mpu.dp_rank * size : (shards.mpu.dp_rank + 1) * size]
                piece = target.narrow(0, start, size)
                piece.zero_()
                piece[: len(values)].copy_(values)
        # What DeepSpeed's own loading does after this: it makes the weights from the fp32 pieces, wherever they live.
        optimizer._rigid_load_state_dict(
            {
                "loss_scaler": optimizer.loss_scaler,
                "dynamic_loss_scale": optimizer.dynamic_loss_scale,
                "overflow": optimizer.overflow,
                "fp32_flat_groups": flats,
            },
            load_optimizer_states=False,
        )


@contextmanager
def _resting(optimizer: Any) -> Iterator[None]:
    """Small parameters that ZeRO-3 keeps whole are cut before their pieces change, and made whole again."""
    optimizer.checkpoint_event_prologue()
    yield
    optimizer.checkpoint_event_epilogue()


def _moments(optimizer: torch.optim.Optimizer, parameter: Tensor, updates: int) -> dict[str, Any]:
    """Adam's state of a tensor, made where the first update would make it."""
    state: dict[str, Any] = optimizer.state[parameter]
    if not state:
        state.update({kind: torch.zeros_like(parameter, requires_grad=False) for kind in MOMENTS})
    if isinstance(optimizer, torch.optim.AdamW):
        # The fused kernel counts on the device.
        device = parameter.device if optimizer.defaults["fused"] else "cpu"
        state["step"] = torch.tensor(float(updates), device=device)
    else:
        state["step"] = updates
    return state
