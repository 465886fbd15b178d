"""DeepSpeed's files of ZeRO 0 to 3, with and without a pipeline: where a parameter's numbers lie in them.

Facts from the sources of DeepSpeed 0.19.8 (runtime/engine.py, runtime/pipe/module.py). Z is the number of a
model-parallel rank, stage x TP + tensor-parallel rank; D that of a data-parallel one::

    mp_rank_Z_model_states.pt               all weights of rank Z; with a pipeline none. ZeRO-0: the optimizer's state
    layer_L-model_T-model_states.pt         pipeline: weights of layer L of the list, of tensor-parallel rank T
    [bf16_]zero_pp_rank_D_mp_rank_Z_optim_states.pt   ZeRO 1 to 3: fp32 weights and moments, in flat pieces
    zero_pp_rank_D_mp_rank_Z_model_states.pt          ZeRO-3: names and shapes in the order of the pieces
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from torch import Tensor

from megatron_ds.checkpoint.listed_file import load_listed
from megatron_ds.checkpoint.manifest import Manifest
from megatron_ds.checkpoint.names import Names
from megatron_ds.checkpoint.safe_load import DEEPSPEED_CLASSES
from megatron_ds.checkpoint.zero_pieces import Kind, ZeroPieces
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ShardSpec


class ShardFiles(Protocol):
    """A checkpoint's files, as the shards that are in them."""

    def read(self, name: str, kind: Kind, tp_rank: int) -> Tensor:
        """The shard of a parameter that a tensor-parallel rank saved.

        Raises:
            CheckpointError: a file is missing or damaged, or does not hold it.
        """
        ...


class DeepSpeedFiles:
    """Shards out of DeepSpeed's own files.

    Args:
        folder: of one checkpoint.
        manifest: its contents.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._layout = manifest.layout
        self._names = Names(manifest)
        self._specs = {name: ShardSpec.from_json(spec) for name, spec in manifest.parameters.items()}
        self._load = lru_cache(maxsize=None)(lambda name: load_listed(folder, name, manifest, DEEPSPEED_CLASSES))
        self._pieces = ZeroPieces(self._load, manifest.layout)

    def read(self, name: str, kind: Kind, tp_rank: int) -> Tensor:
        """The shard of a parameter that a tensor-parallel rank saved.

        Raises:
            CheckpointError: a file is missing or damaged, or does not hold it.
        """
        shape = self._specs[name].local_shape(self._layout.tp_size)
        rank = self._names.stage(name) * self._layout.tp_size + tp_rank
        try:
            return self._read(name, kind, rank, math.prod(shape)).reshape(shape)
        except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                Problem(
                    f"{self._folder} does not hold {kind} of {name} as its manifest says (model-parallel rank {rank})",
                    advice="copy the whole folder of the checkpoint, or name another one",
                )
            ) from error

    def _read(self, name: str, kind: Kind, rank: int, size: int) -> Tensor:
        if self._layout.zero_stage == 3 and kind == "weights":
            # Stage 3 saves its weights once, in fp32.
            fp32 = self._pieces.read(self._names.in_deepspeed(name), "fp32", rank, size)
            return fp32.to(COMPUTE_DTYPES[self._layout.precision])
        if kind == "weights":
            return self._weight(name, rank)
        if self._layout.zero_stage > 0:
            return self._pieces.read(self._names.in_deepspeed(name), kind, rank, size)
        if kind == "fp32":
            return self._weight(name, rank)
        place = self._names.in_optimizer(self._names.stage(name)).index(name)
        moment: Tensor = self._load(_model_states(rank))["optimizer"]["state"][place][kind]
        return moment

    def _weight(self, name: str, rank: int) -> Tensor:
        if self._layout.pp_size == 1:
            weight: Tensor = self._load(_model_states(rank))["module"][name]
        else:
            weight = self._load(layer_file(self._names.layer(name), rank % self._layout.tp_size))[
                self._names.suffix(name)
            ]
        return weight


def layer_file(layer: int, tp_rank: int) -> str:
    """Name of the file with a layer's weights, of one tensor-parallel rank."""
    return f"layer_{layer:02d}-model_{tp_rank:02d}-model_states.pt"


def _model_states(rank: int) -> str:
    return f"mp_rank_{rank:02d}_model_states.pt"
