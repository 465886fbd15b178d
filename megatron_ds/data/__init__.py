"""From token files to training samples. Only `batch`, `bert_batch` and `loader` import torch."""

from megatron_ds.data.bert_build import BertDatasets, build_bert_datasets
from megatron_ds.data.bert_check import check_bert_data
from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.build import Datasets
from megatron_ds.data.check import check_data, other_tokenizers
from megatron_ds.data.families import build_run_datasets, run_data_problems
from megatron_ds.data.gpt_build import GptDatasets, build_gpt_datasets
from megatron_ds.data.order import TrainingOrder
from megatron_ds.data.samples import SampleCounts, samples_needed

__all__ = [
    "BertDatasets",
    "BertSampling",
    "Datasets",
    "GptDatasets",
    "SampleCounts",
    "TrainingOrder",
    "build_bert_datasets",
    "build_gpt_datasets",
    "build_run_datasets",
    "check_bert_data",
    "check_data",
    "other_tokenizers",
    "run_data_problems",
    "samples_needed",
]
