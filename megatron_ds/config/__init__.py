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
from megatron_ds.config.report import describe, describe_draft, write_resolved
from megatron_ds.config.resolve import collect, draft, resolve
from megatron_ds.config.resolved import Draft, ResolvedRun

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "Draft",
    "LoggingConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "ResolvedRun",
    "RunConfig",
    "TrainingConfig",
    "collect",
    "describe",
    "describe_draft",
    "draft",
    "resolve",
    "write_resolved",
]
