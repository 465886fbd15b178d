"""Models as lists of layers. Nothing here knows DeepSpeed, ranks beyond the `mpu`, or how a model is trained."""

from megatron_ds.models.attention import AttentionScheme, check_kernel
from megatron_ds.models.bert import bert_layers
from megatron_ds.models.families import LossFunction, model_layers, model_losses, run_layers
from megatron_ds.models.gpt import GptLoss, gpt_layers
from megatron_ds.models.init import initialize_weights
from megatron_ds.models.layer_def import Activations, LayerDef, named_layer_parameters, tied_names
from megatron_ds.models.meta import whole_model_specs
from megatron_ds.models.recompute import NO_RECOMPUTE, Recompute, recompute_core_attention, with_recomputation
from megatron_ds.models.sequential import SequentialModel
from megatron_ds.models.transformer import ParallelTransformerLayer

__all__ = [
    "NO_RECOMPUTE",
    "Activations",
    "AttentionScheme",
    "GptLoss",
    "LayerDef",
    "LossFunction",
    "ParallelTransformerLayer",
    "Recompute",
    "SequentialModel",
    "bert_layers",
    "check_kernel",
    "gpt_layers",
    "initialize_weights",
    "model_layers",
    "model_losses",
    "named_layer_parameters",
    "recompute_core_attention",
    "run_layers",
    "tied_names",
    "whole_model_specs",
    "with_recomputation",
]
