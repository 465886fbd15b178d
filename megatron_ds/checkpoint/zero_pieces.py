"""ZeRO's flat tensors: from the pieces of the data-parallel ranks to whole parameters.

At stages 1 and 2 the parameters of a group lie one after the other, and each rank holds one stretch of that: a
parameter on the border is in two files. At stage 3 every parameter is cut into equal pieces, the last one padded, and a
rank's pieces lie one after the other. (DeepSpeed 0.19.8, runtime/zero and utils/zero_to_fp32.py.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from megatron_ds.checkpoint.manifest import Layout

# `weights` are in the dtype that the model computes in; the others are fp32.
Kind = Literal["weights", "fp32", "exp_avg", "exp_avg_sq"]
MOMENTS: tuple[Kind, ...] = ("exp_avg", "exp_avg_sq")
STATES: tuple[Kind, ...] = ("fp32", *MOMENTS)


@dataclass(frozen=True)
class Piece:
    """A stretch of a flat tensor.

    Attributes:
        group: which flat tensor of a rank.
        start: its first number.
        size: how many numbers.
    """

    group: int
    start: int
    size: int


class ZeroPieces:
    """The optimizer files of ZeRO 1 to 3.

    Args:
        load: from a file's name to its content.
        layout: how the files are cut.
    """

    def __init__(self, load: Callable[[str], Any], layout: Layout) -> None:
        self._load = load
        self._layout = layout
        self._places = lru_cache(maxsize=None)(self._places_of)

    def read(self, name: str, kind: Kind, rank: int, size: int) -> Tensor:
        """A parameter as model-parallel rank `rank` held it, flat.

        Args:
            name: the parameter's name in DeepSpeed's files.
            kind: ``fp32`` or one of the moments.
            rank: the model-parallel rank.
            size: how many numbers it has.
        """
        pieces = [
            self._flat(data_rank, rank, place.group, kind).narrow(0, place.start, place.size)
            for data_rank in range(self._layout.dp_size)
            if (place := self._places(data_rank, rank).get(name)) is not None
        ]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[:size]

    def _state(self, data_rank: int, rank: int) -> Mapping[str, Any]:
        name = f"zero_pp_rank_{data_rank}_mp_rank_{rank:02d}_optim_states.pt"
        file = f"bf16_{name}" if self._layout.precision == "bf16" else name
        state: Mapping[str, Any] = self._load(file)["optimizer_state_dict"]
        return state

    def _flat(self, data_rank: int, rank: int, group: int, kind: Kind) -> Tensor:
        state = self._state(data_rank, rank)
        is_stage_3 = self._layout.zero_stage == 3
        if kind == "fp32":
            tensors = state["fp32_flat_groups" if is_stage_3 else "single_partition_of_fp32_groups"]
            flat: Tensor = tensors[group]
        else:
            flat = state["optimizer_state_dict" if is_stage_3 else "base_optimizer_state"]["state"][group][kind]
        return flat

    def _places_of(self, data_rank: int, rank: int) -> dict[str, Piece]:
        if self._layout.zero_stage == 3:
            return self._stage_3_places(data_rank, rank)
        mappings = self._state(data_rank, rank)["param_slice_mappings"]
        return {
            name: Piece(group, address.start, address.numel)
            for group, mapping in enumerate(mappings)
            for name, address in mapping.items()
        }

    def _stage_3_places(self, data_rank: int, rank: int) -> dict[str, Piece]:
        shapes = self._load(f"zero_pp_rank_0_mp_rank_{rank:02d}_model_states.pt")["param_shapes"]
        lengths = [len(flat) for flat in self._state(data_rank, rank)["fp32_flat_groups"]]
        places: dict[str, Piece] = {}
        group = offset = 0
        for name, shape in ((name, shape) for named in shapes for name, shape in named.items()):
            size = -(-math.prod(shape) // self._layout.dp_size)
            while offset + size > lengths[group]:
                group, offset = group + 1, 0
            places[name] = Piece(group, offset, size)
            offset += size
        return places
