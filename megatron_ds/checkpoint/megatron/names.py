"""Names of parameters: those of Megatron's versions and forks, and ours.

Sources: NVIDIA Megatron-LM, megatron/model/{language_model,transformer,bert_model,classification,multiple_choice}.py
(2019 to 2023) and megatron/core; bigscience and Microsoft Megatron-DeepSpeed, megatron/model/{gpt,language}_model.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# A module inside of a block: theirs and ours.
_BLOCK_MODULES = {
    "input_layernorm": "input_layernorm",
    "input_norm": "input_layernorm",
    "attention.query_key_value": "attention.query_key_value",
    "attention.dense": "attention.dense",
    "self_attention.query_key_value": "attention.query_key_value",
    "self_attention.dense": "attention.dense",
    "self_attention.linear_qkv": "attention.query_key_value",
    "self_attention.linear_proj": "attention.dense",
    "self_attention.q_layernorm": "attention.q_layernorm",
    "self_attention.k_layernorm": "attention.k_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}
# Norms that Transformer Engine fuses with the matrix behind them.
_FUSED_NORMS = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "post_attention_layernorm"}
_EMBEDDINGS = {
    "word_embeddings": "word_embeddings",
    "word_embeddings.norm": "embed_layernorm",
    "position_embeddings": "position_embeddings",
    "tokentype_embeddings": "tokentype_embeddings",
}
# BERT's modules behind the stack.
_HEADS = {
    "pooler.dense": "pooler.dense",
    "lm_head.dense": "lm_head.dense",
    "lm_head.layernorm": "lm_head.layernorm",
    "lm_head.norm": "lm_head.layernorm",
    "lm_head.layer_norm": "lm_head.layernorm",
    "binary_head": "binary_head",
    "classification_head": "classification_head",
    "multichoice_head": "classification_head",
}

_STACK = re.compile(r"(?:encoder|transformer|decoder)\.(?:layers\.(?P<layer>\d+)\.(?P<inner>.+)|(?P<last>.+))")
# What nobody needs: scaling factors of FP8, angles, masks that torch counted as state.
_NO_PARAMETERS = re.compile(r"(?:.+\.)?(?:_extra_state|inv_freq|masked_bias)|.*attention\.bias")
# The head's copy of tied embeddings, on the last stage of a pipeline.
HEAD_COPY = "word_embeddings_for_head.weight"
_WHOLE_NAMES = {
    HEAD_COPY: None,
    "output_layer.weight": "lm_head.weight",
    "output_layer.bias": "lm_head.bias",
    "lm_head.bias": "lm_head.bias",
}


@dataclass(frozen=True)
class TheirName:
    """What one of their names means.

    Attributes:
        name: our name; inside of a block without its number, and None for the copy of tied embeddings.
        layer: the block's number on its stage, or None outside of blocks.
    """

    name: str | None
    layer: int | None = None


def flatten(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of dicts in dicts."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_parameter(their_name: str) -> bool:
    """Whether a value of that name is a weight of the model."""
    return _NO_PARAMETERS.fullmatch(their_name) is None


def of_stage(their_name: str) -> TheirName | None:
    """What a name in the state dict of a whole stage means; None for a name that is not known."""
    plain = their_name.removeprefix("language_model.")
    if plain in _WHOLE_NAMES:
        return TheirName(_WHOLE_NAMES[plain])
    if plain.startswith("embedding."):
        return _wrapped(of_embedding(plain.removeprefix("embedding.")))
    module, _, kind = plain.rpartition(".")
    return TheirName(f"{_HEADS[module]}.{kind}") if module in _HEADS else _of_stack(plain)


def _of_stack(plain: str) -> TheirName | None:
    found = _STACK.fullmatch(plain)
    if found is None:
        return None
    if found["layer"] is not None:
        inner = of_block(found["inner"])
        return None if inner is None else TheirName(inner, int(found["layer"]))
    module, _, kind = found["last"].rpartition(".")
    return TheirName(f"final_layernorm.{kind}") if module in ("final_layernorm", "final_norm") else None


def of_block(their_name: str) -> str | None:
    """Our name for a parameter inside of a block."""
    module, _, kind = their_name.rpartition(".")
    if kind.startswith("layer_norm_") and module in _FUSED_NORMS:
        return f"{_FUSED_NORMS[module]}.{kind.removeprefix('layer_norm_')}"
    return f"{_BLOCK_MODULES[module]}.{kind}" if module in _BLOCK_MODULES else None


def of_embedding(their_name: str) -> str | None:
    """Our name for a parameter of the embedding layer."""
    module, _, kind = their_name.rpartition(".")
    return f"{_EMBEDDINGS[module]}.{kind}" if module in _EMBEDDINGS else None


def _wrapped(name: str | None) -> TheirName | None:
    return None if name is None else TheirName(name)


@dataclass(frozen=True)
class Spelling:
    """How one generation of Megatron spells the names of a stage.

    Attributes:
        embedding: what names of embeddings begin with.
        blocks: what names inside of the stack begin with.
        final_norm: the norm after the blocks.
        head: the head with weights of its own.
        head_copy: the copy of tied embeddings on the last stage.
        inner: our module inside of a block → theirs.
        heads: our parameter or module behind the stack → theirs, where it is not the same.
        fused_norms: norms are named by the matrix behind them.
        extra_states: an empty `_extra_state` stands beside each matrix.
    """

    embedding: str
    blocks: str
    final_norm: str
    head: str
    head_copy: str
    inner: Mapping[str, str]
    heads: Mapping[str, str] = field(default_factory=dict)
    fused_norms: bool = False
    extra_states: bool = False

    def of_block(self, our_name: str) -> str:
        """Their name for our parameter inside of a block."""
        module, _, kind = our_name.rpartition(".")
        if self.fused_norms:
            for matrix, norm in _FUSED_NORMS.items():
                if module == norm:
                    return f"{matrix}.layer_norm_{kind}"
        return f"{self.inner[module]}.{kind}"

    def of_stage(self, our_name: str) -> str:
        """Their name for our parameter outside of blocks."""
        module, _, kind = our_name.rpartition(".")
        if module == "final_layernorm":
            return f"{self.final_norm}.{kind}"
        if our_name == "lm_head.weight":
            return f"{self.head}.{kind}"
        if our_name == "lm_head.bias":
            return self.heads.get(our_name, our_name)
        if module in _HEADS.values():
            return f"{self.heads.get(module, module)}.{kind}"
        theirs = {ours: name for name, ours in _EMBEDDINGS.items()}
        prefix = f"{self.embedding}." if self.embedding else ""
        return f"{prefix}{theirs[module]}.{kind}"


def _same(*modules: str) -> dict[str, str]:
    return {module: module for module in modules}


_MLP = _same("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
_SELF_ATTENTION = {
    "attention.query_key_value": "self_attention.query_key_value",
    "attention.dense": "self_attention.dense",
}
BLOCK = {**_same("input_layernorm", "post_attention_layernorm"), **_SELF_ATTENTION, **_MLP}
_CLASSIC_HEADS = {"pooler.dense": "language_model.pooler.dense"}
CLASSIC = Spelling(
    embedding="language_model.embedding",
    blocks="language_model.encoder.layers",
    final_norm="language_model.encoder.final_layernorm",
    head="language_model.output_layer",
    head_copy=HEAD_COPY,
    inner=BLOCK,
    heads=_CLASSIC_HEADS,
)
# Inside of the files of a pipeline's layers; the final norm stands in one of its own.
PIPELINE = Spelling(embedding="", blocks="", final_norm="", head="lm_head", head_copy="", inner=BLOCK)
# The last releases before core, which know RMSNorm, call all norms so.
CLASSIC_NORMS = Spelling(
    embedding="language_model.embedding",
    blocks="language_model.encoder.layers",
    final_norm="language_model.encoder.final_norm",
    head="language_model.output_layer",
    head_copy=HEAD_COPY,
    inner={**BLOCK, "input_layernorm": "input_norm", "post_attention_layernorm": "post_attention_norm"},
    heads={**_CLASSIC_HEADS, "lm_head.layernorm": "lm_head.norm"},
)
_CORE_INNER = {
    "input_layernorm": "input_layernorm",
    "attention.query_key_value": "self_attention.linear_qkv",
    "attention.dense": "self_attention.linear_proj",
    "attention.q_layernorm": "self_attention.q_layernorm",
    "attention.k_layernorm": "self_attention.k_layernorm",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "mlp.dense_h_to_4h": "mlp.linear_fc1",
    "mlp.dense_4h_to_h": "mlp.linear_fc2",
}


def core_spelling(*, transformer_engine: bool, stack: str = "decoder") -> Spelling:
    """The names of Megatron core, with its own layers or with those of Transformer Engine.

    Args:
        transformer_engine: whose layers.
        stack: what holds the blocks: ``encoder`` in a BERT.
    """
    return Spelling(
        embedding="embedding",
        blocks=f"{stack}.layers",
        final_norm=f"{stack}.final_layernorm",
        head="output_layer",
        head_copy="output_layer.weight",
        inner=_CORE_INNER,
        heads={"lm_head.layernorm": "lm_head.layer_norm", "lm_head.bias": "output_layer.bias"},
        fused_norms=transformer_engine,
        extra_states=True,
    )
