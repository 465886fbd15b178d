"""From token files to training samples. Only `batch` and `loader` import torch."""

from megatron_ds.data.build import GptDatasets, build_gpt_datasets
from megatron_ds.data.check import check_data, tokenizer_notes
from megatron_ds.data.order import TrainingOrder
from megatron_ds.data.samples import SampleCounts, samples_needed

__all__ = [
    "GptDatasets",
    "SampleCounts",
    "TrainingOrder",
    "build_gpt_datasets",
    "check_data",
    "samples_needed",
    "tokenizer_notes",
]
