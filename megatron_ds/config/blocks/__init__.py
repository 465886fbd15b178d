"""Every option of a run, a file for each block.

Flags, JSON keys, ``--help`` and docs/config.md are generated from these classes.
"""

from megatron_ds.config.blocks.bounds import MOST_RANKS
from megatron_ds.config.blocks.checkpoint import CheckpointConfig
from megatron_ds.config.blocks.data import DOCUMENT_OPTIONS, DataConfig
from megatron_ds.config.blocks.logging import LoggingConfig
from megatron_ds.config.blocks.model import GATED_ACTIVATIONS, ModelConfig, default_ffn_size, rotary_width
from megatron_ds.config.blocks.optimizer import OptimizerConfig
from megatron_ds.config.blocks.parallel import ParallelConfig, default_zero_stage
from megatron_ds.config.blocks.run import RunConfig
from megatron_ds.config.blocks.task import GLUE_TASKS, TaskConfig
from megatron_ds.config.blocks.training import TrainingConfig

__all__ = [
    "DOCUMENT_OPTIONS",
    "GATED_ACTIVATIONS",
    "GLUE_TASKS",
    "MOST_RANKS",
    "CheckpointConfig",
    "DataConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "RunConfig",
    "TaskConfig",
    "TrainingConfig",
    "default_ffn_size",
    "default_zero_stage",
    "rotary_width",
]
