"""The config system: from flags and JSON files to one frozen, checked `RunConfig`, without torch and deepspeed."""

from megatron_ds.config.blocks import (
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    TrainingConfig,
)
from megatron_ds.config.report import describe, write_resolved
from megatron_ds.config.resolve import ResolvedRun, collect, resolve

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "ResolvedRun",
    "RunConfig",
    "TrainingConfig",
    "collect",
    "describe",
    "resolve",
    "write_resolved",
]
