"""`CheckpointReader`: any checkpoint of this project as whole parameters, or as the shards of any layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from megatron_ds.checkpoint.deepspeed_files import DeepSpeedFiles, ShardFiles
from megatron_ds.checkpoint.find import find_checkpoint
from megatron_ds.checkpoint.foreign import refuse_foreign
from megatron_ds.checkpoint.manifest import Manifest
from megatron_ds.checkpoint.parameter_files import ParameterFiles
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.checkpoint.zero_pieces import Kind
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.mpu import ShardSpec

_ADVICE = "copy the whole folder of the checkpoint, or name another one"


class CheckpointReader:
    """Reads one checkpoint, whatever layout saved it. Files are mapped, so what is not asked for is not read.

    Args:
        folder: of one checkpoint.
        manifest: its contents.

    Raises:
        CheckpointError: the manifest names no parameters.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.specs = {name: ShardSpec.from_json(spec) for name, spec in manifest.parameters.items()}
        if not self.specs:
            raise CheckpointError(Problem(f"the manifest of {folder} names no parameters", advice=_ADVICE))
        files = ParameterFiles if manifest.kind == "parameters" else DeepSpeedFiles
        self._files: ShardFiles = files(folder, manifest)

    @property
    def model(self) -> ModelConfig:
        """The architecture."""
        return ModelConfig(**self.manifest.model)

    @property
    def has_optimizer(self) -> bool:
        """Whether fp32 weights and moments were saved."""
        return self.manifest.has_optimizer

    def read(self, name: str, kind: Kind = "weights") -> Tensor:
        """A whole parameter, or one of its states, without vocabulary padding.

        Args:
            name: canonical name.
            kind: ``weights`` in the dtype of the model, or ``fp32``, ``exp_avg``, ``exp_avg_sq`` of the optimizer.

        Raises:
            CheckpointError: a file is missing or damaged, or the manifest does not have the parameter.
        """
        spec, tp_size = self._spec(name), self.manifest.layout.tp_size
        ranks = 1 if spec.dim is None else tp_size
        return spec.unshard([self._files.read(name, kind, rank).detach() for rank in range(ranks)])

    def copies(self, name: str, kind: Kind = "weights") -> list[Tensor]:
        """What each tensor-parallel rank saved of a parameter."""
        self._spec(name)
        return [self._files.read(name, kind, rank).detach() for rank in range(self.manifest.layout.tp_size)]

    def shard(self, name: str, kind: Kind, spec: ShardSpec, tp_rank: int, tp_size: int) -> Tensor:
        """One rank's shard of a parameter, at any tensor-parallel size.

        Args:
            name: canonical name.
            kind: see `read`.
            spec: how this rank's model cuts the parameter.
            tp_rank: whose shard.
            tp_size: number of shards.
        """
        if (spec, tp_size) == (self._spec(name), self.manifest.layout.tp_size):
            return self._files.read(name, kind, tp_rank).detach()
        return spec.shard(self.read(name, kind), tp_rank, tp_size)

    def _spec(self, name: str) -> ShardSpec:
        if name not in self.specs:
            raise CheckpointError(Problem(f"the manifest of {self.folder} has no parameter {name}", advice=_ADVICE))
        return self.specs[name]

    def weights(self, kind: Kind = "weights") -> ModelWeights:
        """The model's weights, in its own dtype or (``fp32``) as the optimizer keeps them."""
        return ModelWeights(self.model, self.specs, partial(self.read, kind=kind))


def open_checkpoint(folder: Path, step: int | None = None, option: str = "--input") -> CheckpointReader:
    """Opens a checkpoint.

    Args:
        folder: of a run, or of one checkpoint inside it.
        step: which one of the run's; the one that ``latest`` names by default.
        option: which one the user gave the folder with, for messages.

    Raises:
        CheckpointError: there is none, it is not whole, or another program wrote it.
    """
    refuse_foreign(folder)
    found = find_checkpoint(folder, step, option)
    return CheckpointReader(found.folder / found.tag, found.manifest)
