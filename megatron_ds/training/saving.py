"""Saving a run: the engine's files first, then what describes them, then the pointer to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.checkpoint import Layout, Manifest, point_latest_at
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import TrainingOrder
from megatron_ds.engine.base import TrainEngine
from megatron_ds.models import LayerDef
from megatron_ds.mpu import ModelParallelUnit, ShardSpec
from megatron_ds.utils.logging import logger


@dataclass(frozen=True)
class CheckpointSaver:
    """Writes checkpoints. Every rank calls it.

    Attributes:
        run: the run.
        specs: how every parameter of the whole model is cut, by canonical name.
        engine: holds the model.
        mpu: where this rank sits.
        layers: the model's list of layers.
        training_order: what the order of the run's samples depends on; None where that is not known. Rank 0's counts.
    """

    run: RunConfig
    specs: Mapping[str, ShardSpec]
    engine: TrainEngine
    mpu: ModelParallelUnit
    layers: Sequence[LayerDef]
    training_order: TrainingOrder | None

    def __call__(self, folder: Path) -> None:
        """Saves the present state under ``folder/global_step<N>`` and points ``latest`` at it."""
        checkpoint = self.engine.save(folder)
        if self.mpu.global_rank == 0:
            manifest = Manifest(
                progress=self.engine.progress.to_json(),
                layout=Layout.of(self.run),
                model=self.run.model.model_dump(),
                parameters={name: spec.to_json() for name, spec in self.specs.items()},
                options=self.run.model_dump(),
                training_order=self.training_order.to_json() if self.training_order else {},
                layers=[layer.tied_to or layer.name for layer in self.layers],
                stages=[[stage.start, stage.stop] for stage in self.engine.stages()],
                loss_scaler=self.engine.loss_scaler_state(),
            )
            manifest.write(checkpoint)
            point_latest_at(folder, checkpoint.name)
            logger.info("saved %s", checkpoint)
