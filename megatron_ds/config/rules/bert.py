"""Rules about the families of models: what BERT has and GPT has not, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.catalog import all_options
from megatron_ds.config.rules.common import POSITIONS, given_in_vain
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem

FAMILY = "model.model_type"
TASK = "task.task"
_OUTPUT, _CLASSES = "model.output_head", "model.num_classes"
_HEAD, _TYPES, _BACKEND = "model.bert_binary_head", "model.num_tokentypes", "training.attention_backend"

# What each family's own launcher is.
PROGRAMS = {"gpt": "pretrain_gpt.py", "bert": "pretrain_bert.py"}

_NOT_FOR_BERT = (
    *("model.prefix_lm", "model.window_size", "model.embed_layernorm", "model.untie_embeddings_and_output_weights"),
    *("data.reset_position_ids", "data.reset_attention_mask", "data.eod_mask_loss"),
)


def program_problems(family: str, settings: Settings) -> Iterator[Problem]:
    """What a program for pretraining can't do.

    Args:
        family: the family of models that it pretrains.
        settings: the options.
    """
    program, given = PROGRAMS[family], settings.value(FAMILY)
    if given != family:
        yield Problem(
            f"{program} trains models of the family {family}, and model_type is {given} ({settings.origin(FAMILY)})",
            advice=f"start {PROGRAMS[given]}, or choose another model",
        )
    if settings.value(_OUTPUT) != "lm":
        yield Problem(
            f"{program} pretrains, which takes output_head lm",
            settings.sources(_OUTPUT),
            "start finetune.py for a task, or leave --output-head out",
        )
    if settings.value(TASK) is not None:
        yield Problem(
            f"{program} pretrains, and a task is given",
            settings.sources(TASK),
            "start finetune.py, or leave --task out",
        )


def bert_options_have_bert(settings: Settings) -> Iterator[Problem]:
    """Options of BERT's heads and token types need BERT."""
    if settings.value(FAMILY) != "bert":
        yield from given_in_vain(settings, (_HEAD, _TYPES, _OUTPUT), FAMILY, "a model_type of bert")


def classes_have_a_head(settings: Settings) -> Iterator[Problem]:
    """A number of classes and the head that scores them belong together."""
    if settings.value(_OUTPUT) != "classification":
        yield from given_in_vain(settings, (_CLASSES,), _OUTPUT, "an output_head of classification")
    elif settings.value(_CLASSES) is None:
        yield Problem(
            "output_head is classification, and the number of classes is not known",
            settings.sources(_OUTPUT),
            "give --num-classes, or leave --output-head out: finetune.py takes both from its task",
        )


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
    if settings.value(FAMILY) != "bert" or settings.value(_TYPES) != 1:
        return
    if settings.value(_OUTPUT) in ("classification", "multiple_choice"):
        yield Problem(
            "num_tokentypes is 1, and a task's samples have tokens of two types",
            settings.sources(_TYPES, _OUTPUT),
            "use a model with two token types, or with none",
        )
    elif settings.value(_HEAD):
        yield Problem(
            "num_tokentypes is 1, and the binary head's samples have tokens of two types",
            settings.sources(_TYPES, _HEAD),
            "use 2, or 0 for a model without token types, or --bert-no-binary-head",
        )
