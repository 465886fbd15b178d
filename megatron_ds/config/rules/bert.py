"""Rules about the families of models: what BERT has and GPT has not, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.catalog import all_options
from megatron_ds.config.rules.common import POSITIONS, given_in_vain
from megatron_ds.config.settings import Given, Settings
from megatron_ds.errors import Problem

FAMILY = "model.model_type"
_HEAD, _TYPES, _BACKEND = "model.bert_binary_head", "model.num_tokentypes", "training.attention_backend"

# What each family's own launcher is.
PROGRAMS = {"gpt": "pretrain_gpt.py", "bert": "pretrain_bert.py"}

_NOT_FOR_BERT = (
    *("model.prefix_lm", "model.window_size", "model.embed_layernorm", "model.untie_embeddings_and_output_weights"),
    *("data.reset_position_ids", "data.reset_attention_mask", "data.eod_mask_loss"),
)


def family_problem(wanted: str, given: Given) -> Problem:
    """The problem of a launcher that is given a model of another family.

    Args:
        wanted: the launcher's family.
        given: the model's.
    """
    other = PROGRAMS[given.value]
    return Problem(
        f"{PROGRAMS[wanted]} trains models of the family {wanted}, and model_type is {given.value} ({given.origin})",
        advice=f"start {other}, or choose another model",
    )


def bert_options_have_bert(settings: Settings) -> Iterator[Problem]:
    """Options of BERT's heads and token types need BERT."""
    if settings.value(FAMILY) != "bert":
        yield from given_in_vain(settings, (_HEAD, _TYPES), FAMILY, "a model_type of bert")


def bert_has_options_of_its_kind(settings: Settings) -> Iterator[Problem]:
    """What says how a token sees those before it has no meaning in both directions; nor has BERT a head of its own."""
    if settings.value(FAMILY) != "bert":
        return
    given = [path for path in _NOT_FOR_BERT if settings.value(path) != all_options()[path].default]
    given += [POSITIONS] if settings.value(POSITIONS) == "alibi" else []
    given += [_BACKEND] if settings.value(_BACKEND) in ("flex", "flash") else []
    for path in given:
        source = settings.source(path)
        yield Problem(
            f"BERT can't be with {source.name} {source.value}",
            (source, settings.source(FAMILY)),
            f"leave --{source.name.replace('_', '-')} out",
        )


def binary_head_has_two_token_types(settings: Settings) -> Iterator[Problem]:
    """The two parts of a sample have token types 0 and 1."""
    if settings.value(FAMILY) == "bert" and settings.value(_HEAD) and settings.value(_TYPES) == 1:
        yield Problem(
            "num_tokentypes is 1, and the binary head's samples have tokens of two types",
            settings.sources(_TYPES, _HEAD),
            "use 2, or 0 for a model without token types, or --bert-no-binary-head",
        )
