"""BERT with each of its heads: post-LN, learned positions, biases.

Ours has the norm of the embeddings as the first layer's first norm, and each layer's last norm as the first of the next
one. The label 0 of their next-sentence head and of our binary head both mean that the second part follows the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from megatron_ds.checkpoint.huggingface.architecture import Architecture, Rule
from megatron_ds.checkpoint.huggingface.config_keys import Key, UnsupportedError, Values, activation
from megatron_ds.checkpoint.huggingface.layouts import QKV_APART

_LAYER = "bert.encoder.layer.{}."
_NORM_BEHIND = "bert.encoder.layer.{%s}.output.LayerNorm"
_POOLER = Rule("pooler.dense", ("bert.pooler.dense",))
_QKV = ("query", "key", "value")
_POSITIONS = {"learned_absolute": "absolute"}


@dataclass(frozen=True)
class TokenTypes:
    """The number of token types; theirs has at least one, whose embedding may be zero."""

    keys: tuple[str, ...] = ("type_vocab_size",)
    options: tuple[str, ...] = ("num_tokentypes",)

    def write(self, options: Values) -> dict[str, Any]:
        """The entry."""
        return {"type_vocab_size": options["num_tokentypes"] or 1}

    def read(self, config: Values) -> dict[str, Any]:
        """The option."""
        return {"num_tokentypes": config.get("type_vocab_size", 2)}


@dataclass(frozen=True)
class Labels:
    """The number of classes, which config.json has as a table of their names."""

    keys: tuple[str, ...] = ("id2label", "label2id", "num_labels", "_num_labels")
    options: tuple[str, ...] = ("num_classes",)

    def write(self, options: Values) -> dict[str, Any]:
        """The entries, with the names that transformers gives by default."""
        if options["num_classes"] is None:
            raise UnsupportedError("num_classes", None, "a number")
        names = [f"LABEL_{number}" for number in range(options["num_classes"])]
        return {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
        }

    def read(self, config: Values) -> dict[str, Any]:
        """The option."""
        names = config.get("id2label")
        return {"num_classes": config.get("num_labels", 2) if names is None else len(names)}


@dataclass(frozen=True)
class WithoutMeaning:
    """Options that change nothing in models of a class."""

    options: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def write(self, options: Values) -> dict[str, Any]:  # noqa: ARG002
        """No entry."""
        return {}

    def read(self, config: Values) -> dict[str, Any]:  # noqa: ARG002
        """No option."""
        return {}


_ENTRIES = (
    Key("vocab_size", "vocab_size", 30522),
    Key("num_hidden_layers", "num_layers", 12),
    Key("hidden_size", "hidden_size", 768),
    Key("num_attention_heads", "num_attention_heads", 12),
    Key("intermediate_size", "ffn_hidden_size", 3072),
    Key("max_position_embeddings", "max_position_embeddings", 512),
    # Not written by transformers 5 any more, which knows no other.
    Key("position_embedding_type", "position_embedding_type", "absolute", _POSITIONS),
    TokenTypes(),
    Key("layer_norm_eps", "layernorm_epsilon", 1e-12),
    Key("hidden_dropout_prob", "hidden_dropout", 0.1),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("initializer_range", "init_method_std", 0.02),
)
_ACTIVATION = activation("hidden_act", "gelu")
# Their head of masked tokens has the activation of the MLP; ours is a GELU.
_GELUS = ("gelu", "gelu_tanh")
_GELU = replace(
    _ACTIVATION,
    values={"gelu": "gelu", "gelu_tanh": "gelu_new"},
    also={theirs: ours for theirs, ours in _ACTIVATION.also.items() if ours in _GELUS},
)
_TIED = Key("tie_word_embeddings", "untie_embeddings_and_output_weights", True, {False: True})

_BODY_RULES = (
    Rule("word_embeddings", ("bert.embeddings.word_embeddings",)),
    Rule("tokentype_embeddings", ("bert.embeddings.token_type_embeddings",)),
    Rule("position_embeddings", ("bert.embeddings.position_embeddings",)),
    Rule("layers.0.input_layernorm", ("bert.embeddings.LayerNorm",)),
    Rule("layers.{}.input_layernorm", (_NORM_BEHIND % "previous",)),
    Rule("layers.{}.attention.query_key_value", tuple(f"{_LAYER}attention.self.{part}" for part in _QKV), QKV_APART),
    Rule("layers.{}.attention.dense", (_LAYER + "attention.output.dense",)),
    Rule("layers.{}.post_attention_layernorm", (_LAYER + "attention.output.LayerNorm",)),
    Rule("layers.{}.mlp.dense_h_to_4h", (_LAYER + "intermediate.dense",)),
    Rule("layers.{}.mlp.dense_4h_to_h", (_LAYER + "output.dense",)),
    Rule("final_layernorm", (_NORM_BEHIND % "last",)),
)
_LM_RULES = (
    Rule("lm_head.dense", ("cls.predictions.transform.dense",)),
    Rule("lm_head.layernorm", ("cls.predictions.transform.LayerNorm",)),
    Rule("lm_head", ("cls.predictions",)),
)
_SAMPLE_RULES = (_POOLER, Rule("classification_head", ("classifier",)))


def _always(**options: Any) -> Mapping[str, Any]:
    return {"model_type": "bert", "residual_connection": "post_ln", **options}


_BODY = Architecture(
    name="BertModel",
    model_type="bert",
    prefix="bert.",
    entries=(*_ENTRIES, _ACTIVATION),
    rules=(*_BODY_RULES, _POOLER),
    always=_always(output_head="none", bert_binary_head=True),
    derived=("kv_channels", "num_query_groups"),
    fixed={"is_decoder": False, "add_cross_attention": False},
    # Dropout before a head, and a head that the class does not have.
    no_matter=("classifier_dropout", "tie_word_embeddings"),
    buffers=(r"embeddings\.(position_ids|token_type_ids)",),
    outside=("cls.", "classifier."),
    older_endings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    zero_tables={"tokentype_embeddings.weight": "bert.embeddings.token_type_embeddings.weight"},
    told_by="bert.pooler.dense.weight",
    is_bare=True,
)
_BODY_WITHOUT_POOLER = replace(_BODY, always=_always(output_head="none", bert_binary_head=False), told_by=None)
_MASKED_LM = replace(
    _BODY,
    name="BertForMaskedLM",
    is_bare=False,
    entries=(*_ENTRIES, _GELU, _TIED),
    rules=(*_BODY_RULES, *_LM_RULES),
    always=_always(bert_binary_head=False),
    no_matter=("classifier_dropout",),
    # Files of early versions have one that nothing reads.
    unused=(r"pooler\.dense\.(weight|bias)",),
    head="cls.predictions.decoder",
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    told_by="cls.predictions.transform.dense.weight",
)
_PRETRAINING = replace(
    _MASKED_LM,
    name="BertForPreTraining",
    rules=(*_BODY_RULES, *_LM_RULES, _POOLER, Rule("binary_head", ("cls.seq_relationship",))),
    always=_always(bert_binary_head=True),
    unused=(),
    told_by="cls.seq_relationship.weight",
)
_CLASSIFICATION = replace(
    _BODY,
    name="BertForSequenceClassification",
    is_bare=False,
    # The pooler is there in any case.
    entries=(*_ENTRIES, _ACTIVATION, Labels(), WithoutMeaning(("bert_binary_head",))),
    rules=(*_BODY_RULES, *_SAMPLE_RULES),
    always=_always(output_head="classification"),
    told_by="classifier.weight",
)
_MULTIPLE_CHOICE = replace(
    _CLASSIFICATION,
    name="BertForMultipleChoice",
    entries=(*_ENTRIES, _ACTIVATION, WithoutMeaning(("bert_binary_head",))),
    always=_always(output_head="multiple_choice"),
)

# Files are of the first one whose tensor they have.
BERT = (_PRETRAINING, _MASKED_LM, _CLASSIFICATION, _MULTIPLE_CHOICE, _BODY, _BODY_WITHOUT_POOLER)
