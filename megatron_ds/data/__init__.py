"""From token files to training samples. Only `batch` and `loader` import torch."""

from megatron_ds.data.check import check_data, other_tokenizers
from megatron_ds.data.gpt_build import GptDatasets, build_gpt_datasets
from megatron_ds.data.order import TrainingOrder
from megatron_ds.data.samples import SampleCounts, samples_needed

__all__ = [
    "GptDatasets",
    "SampleCounts",
    "TrainingOrder",
    "build_gpt_datasets",
    "check_data",
    "other_tokenizers",
    "samples_needed",
]
