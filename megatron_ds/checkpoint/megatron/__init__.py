"""Checkpoints of Megatron-LM and its DeepSpeed forks, in and out. Needs no process group and no GPU."""

from megatron_ds.checkpoint.megatron.exporter import export_megatron
from megatron_ds.checkpoint.megatron.importer import import_megatron

__all__ = ["export_megatron", "import_megatron"]
