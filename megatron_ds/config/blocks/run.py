"""A whole run's options: all blocks together."""

from __future__ import annotations

from megatron_ds.config.blocks.bounds import MOST_RANKS
from megatron_ds.config.blocks.checkpoint import CheckpointConfig
from megatron_ds.config.blocks.data import DataConfig
from megatron_ds.config.blocks.logging import LoggingConfig
from megatron_ds.config.blocks.model import ModelConfig
from megatron_ds.config.blocks.optimizer import OptimizerConfig
from megatron_ds.config.blocks.parallel import ParallelConfig, default_zero_stage
from megatron_ds.config.blocks.task import TaskConfig
from megatron_ds.config.blocks.training import TrainingConfig
from megatron_ds.config.option import OptionBlock, option


class RunConfig(OptionBlock):
    """One whole run, resolved and checked. Built once, then passed down in parts."""

    model: ModelConfig
    parallel: ParallelConfig
    data: DataConfig
    training: TrainingConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    task: TaskConfig = TaskConfig()
    world_size: int = option(1, "Number of processes, as the launcher says.", ge=1, le=MOST_RANKS)

    @property
    def dp_size(self) -> int:
        """Data-parallel size: processes / (TP x PP)."""
        parallel = self.parallel
        return self.world_size // (parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)

    @property
    def global_batch_size(self) -> int:
        """Samples in one optimizer step."""
        given = self.training.global_batch_size
        return given if given is not None else self.training.micro_batch_size * self.dp_size

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that one data-parallel replica runs in one step (gradient accumulation steps)."""
        return self.global_batch_size // (self.training.micro_batch_size * self.dp_size)

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage in force."""
        if self.parallel.zero_stage is not None:
            return self.parallel.zero_stage
        return default_zero_stage(self.training.precision, self.parallel.pipeline_model_parallel_size)
