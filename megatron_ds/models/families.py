"""The families of models: from a config to its list of layers and its losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from megatron_ds.config.blocks import ModelConfig, RunConfig
from megatron_ds.models.bert import (
    MaskedLmLoss,
    bert_layers,
    classification_loss,
    regression_loss,
    sentence_order_loss,
)
from megatron_ds.models.gpt import GptLoss, gpt_layers
from megatron_ds.models.layer_def import LayerDef
from megatron_ds.mpu import ModelParallelUnit

# From what the last layer returns, and (labels, each one's weight), to a scalar.
LossFunction = Callable[[Any, tuple[Tensor, Tensor]], Tensor]


def model_layers(
    config: ModelConfig,
    mpu: ModelParallelUnit,
    *,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    attention_backend: str = "auto",
) -> list[LayerDef]:
    """The layers of a model of any family.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
        reset_position_ids: see `gpt_layers`.
        reset_attention_mask: see `gpt_layers`.
        attention_backend: ``--attention-backend``.
    """
    if config.model_type == "bert":
        return bert_layers(config, mpu, attention_backend=attention_backend)
    return gpt_layers(
        config,
        mpu,
        reset_position_ids=reset_position_ids,
        reset_attention_mask=reset_attention_mask,
        attention_backend=attention_backend,
    )


def run_layers(run: RunConfig, mpu: ModelParallelUnit) -> list[LayerDef]:
    """The layers of a run's model, with what its data and its training need of them.

    Args:
        run: the run, with its vocabulary size known.
        mpu: where this rank sits.
    """
    return model_layers(
        run.model,
        mpu,
        reset_position_ids=run.data.reset_position_ids,
        reset_attention_mask=run.data.reset_attention_mask,
        attention_backend=run.training.attention_backend,
    )


def model_losses(config: ModelConfig, mpu: ModelParallelUnit) -> Mapping[str, LossFunction]:
    """What a model is trained on: the sum of these losses, by their names in the metrics.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
    """
    assert config.output_head != "none", "a model without a head is not trained"
    if config.output_head != "lm":
        is_number = config.output_head == "classification" and config.num_classes == 1
        return {"regression_loss": regression_loss} if is_number else {"classification_loss": classification_loss}
    if config.model_type == "bert":
        order = {"sop_loss": sentence_order_loss} if config.bert_binary_head else {}
        return {"lm_loss": MaskedLmLoss(config, mpu), **order}
    return {"lm_loss": GptLoss(config, mpu)}
