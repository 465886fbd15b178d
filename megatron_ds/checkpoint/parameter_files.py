"""Checkpoints that tools write: weights by layer, and the optimizer in one folder for each parameter.

The folders are those of DeepSpeed's universal checkpoints: ``zero/NAME/{fp32,exp_avg,exp_avg_sq}.pt``, each with the
whole tensor under ``param``. They fit every layout. The weights are in ``layer_L-model_T-model_states.pt``, as a
pipeline writes them, cut over the tensor-parallel ranks that the checkpoint was made for.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from torch import Tensor

from megatron_ds.checkpoint.deepspeed_files import layer_file
from megatron_ds.checkpoint.listed_file import load_listed
from megatron_ds.checkpoint.manifest import Manifest
from megatron_ds.checkpoint.names import Names
from megatron_ds.checkpoint.zero_pieces import Kind
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.mpu import ShardSpec


class ParameterFiles:
    """Shards out of a checkpoint that a tool wrote.

    Args:
        folder: of one checkpoint.
        manifest: its contents.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._names = Names(manifest)
        self._tp_size = manifest.layout.tp_size
        self._specs = {name: ShardSpec.from_json(spec) for name, spec in manifest.parameters.items()}
        # Layers are read one after the other: the file of the last one is enough.
        self._load = lru_cache(maxsize=2 * self._tp_size)(lambda name: load_listed(folder, name, manifest))

    def read(self, name: str, kind: Kind, tp_rank: int) -> Tensor:
        """The shard of a parameter for a tensor-parallel rank.

        Raises:
            CheckpointError: a file is missing or damaged, or does not hold it.
        """
        try:
            if kind == "weights" or (kind == "fp32" and not (self._folder / parameter_file(name, kind)).exists()):
                weights = self._load(layer_file(self._names.layer(name), tp_rank))
                weight: Tensor = weights[self._names.suffix(name)]
                return weight.reshape(self._specs[name].local_shape(self._tp_size))
            whole: Tensor = load_listed(self._folder, parameter_file(name, kind), self._manifest)["param"]
            return self._specs[name].shard(whole.reshape(self._specs[name].full_shape), tp_rank, self._tp_size)
        except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                Problem(
                    f"{self._folder} does not hold {kind} of {name} as its manifest says",
                    advice="copy the whole folder of the checkpoint, or name another one",
                )
            ) from error


def parameter_file(name: str, kind: Kind) -> str:
    """Path of the file with one state of a parameter, inside of a checkpoint's folder."""
    return f"zero/{name}/{kind}.pt"
