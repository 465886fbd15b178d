"""Checkpoints as files: finding, describing and checking them. Needs no process group and no torch."""

from megatron_ds.checkpoint.find import (
    FoundCheckpoint,
    find_checkpoint,
    point_latest_at,
    progress_of,
    progress_of_load,
)
from megatron_ds.checkpoint.fits import changed_options, checkpoint_problems, training_order_problems
from megatron_ds.checkpoint.manifest import Layout, Manifest

__all__ = [
    "FoundCheckpoint",
    "Layout",
    "Manifest",
    "changed_options",
    "checkpoint_problems",
    "find_checkpoint",
    "point_latest_at",
    "progress_of",
    "progress_of_load",
    "training_order_problems",
]
