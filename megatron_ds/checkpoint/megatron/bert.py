"""Which BERT the files hold: their arguments don't say it, the names and shapes of their weights do.

Sources: NVIDIA Megatron-LM, megatron/model/{bert_model,classification,multiple_choice}.py, megatron/core/models/bert,
pretrain_bert.py, tasks/glue/finetune.py, tasks/race/finetune.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatron_ds.checkpoint.megatron.found import Place
from megatron_ds.config.blocks import ModelConfig

# Weights that a GPT of theirs never has.
_ONLY_BERT = (
    "lm_head.dense.weight",
    "pooler.dense.weight",
    "tokentype_embeddings.weight",
    "classification_head.weight",
)
# What their scripts build a model with: token types where samples have two parts.
PARTS = 2


def options_in(places: Mapping[str, Place], shape: Callable[[Place], tuple[int, ...]]) -> dict[str, Any]:
    """Family, heads and token types of a model, in our options.

    Args:
        places: our name of a parameter → where it stands.
        shape: from a place to the shape of its first rank's shard.
    """
    if not any(name in places for name in _ONLY_BERT):
        return {"model_type": "gpt"}
    token_types = places.get("tokentype_embeddings.weight")
    options: dict[str, Any] = {
        "model_type": "bert",
        "num_tokentypes": 0 if token_types is None else shape(token_types)[0],
    }
    head = places.get("classification_head.weight")
    if head is not None:
        if head.name.startswith("multichoice_head"):
            return {**options, "output_head": "multiple_choice"}
        return {**options, "output_head": "classification", "num_classes": shape(head)[0]}
    if "lm_head.dense.weight" in places:
        return {**options, "bert_binary_head": "binary_head.weight" in places}
    return {**options, "output_head": "none", "bert_binary_head": "pooler.dense.weight" in places}


def token_types_there(model: ModelConfig) -> int:
    """How many token types their scripts build the model with."""
    return PARTS if model.output_head != "lm" or model.bert_binary_head else 0


def head_has_other_gelu(model: ModelConfig, arguments: Mapping[str, Any]) -> bool:
    """Whether their head of masked tokens has the exact GELU beside the MLP's approximation.

    Their fused kernel approximates in the MLP alone; ``--openai-gelu`` does so in both, as ours does.
    """
    has_head = model.model_type == "bert" and model.output_head == "lm"
    return has_head and model.activation == "gelu_tanh" and not arguments.get("openai_gelu")
