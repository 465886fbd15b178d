"""A tiny run that saves, as tests of saving start it on each rank."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.tiny_run import Case, TinyRun
from megatron_ds.models import gpt_layers, whole_model_specs
from megatron_ds.training.saving import CheckpointSaver


class SavingRun(TinyRun):
    """A tiny run with what saves it.

    Args:
        case: the configuration.
        folder: of the run.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        super().__init__(case)
        self.folder = folder
        specs = whole_model_specs(partial(gpt_layers, self.run.model), self.mpu.topology)
        self.saver = CheckpointSaver(self.run, specs, self.engine, self.mpu, self.layers, None)

    def step(self) -> None:
        """The next training step."""
        self.train_step(self.engine.progress.step)

    def step_and_save(self) -> None:
        """The next training step, and a checkpoint."""
        self.step()
        self.saver(self.folder)
