"""Rules about finetuning on a task."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_ds.config.rules.bert import TASK
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem

_PACKING = "task.packing"
# [CLS] a [SEP] b [SEP], with one token of each text.
_SHORTEST_PAIR = 5


def task_is_named(settings: Settings) -> Iterator[Problem]:
    """Files of a task, and how often they are gone through, need the task."""
    if settings.value(TASK) is not None:
        return
    for name in ("train_data", "valid_data", "test_data", "epochs", "pretrained_checkpoint"):
        if settings.value(f"task.{name}") not in (None, []):
            yield Problem(
                f"{name} is given and task is not",
                settings.sources(f"task.{name}"),
                f"start finetune.py with --task, or leave --{name.replace('_', '-')} out",
            )


def pairs_fit_sequence(settings: Settings) -> Iterator[Problem]:
    """Two texts stand between three special tokens, and something of each has to be left."""
    task, length = settings.value(TASK), settings.value("model.seq_length")
    if task not in (None, "SFT") and length is not None and length < _SHORTEST_PAIR:
        yield Problem(
            f"seq_length {length} holds no two texts: [CLS] a [SEP] b [SEP] has {_SHORTEST_PAIR} tokens at least",
            settings.sources("model.seq_length", TASK),
            "use 128 or more, as most models of these tasks have it",
        )


def packed_examples_are_apart(settings: Settings) -> Iterator[Problem]:
    """Examples in one sequence see and count their own tokens only; one that is alone has nothing to be parted from."""
    if settings.value(TASK) != "SFT":
        return
    is_packed = settings.value(_PACKING)
    for path in ("data.reset_position_ids", "data.reset_attention_mask"):
        # finetune.py turns them on where examples are packed; a run that is only resolved does not say.
        if path not in settings or settings.value(path) == is_packed:
            continue
        source = settings.source(path)
        flag = source.name.replace("_", "-")
        yield Problem(
            "examples that share a sequence see and count their own tokens only"
            if is_packed
            else f"{source.name} parts examples of one sequence, and without packing each has its own",
            (source, settings.source(_PACKING)),
            f"leave --{'no-' if is_packed else ''}{flag} out" + (", or give --no-packing" if is_packed else ""),
        )


def instructions_have_no_prefix(settings: Settings) -> Iterator[Problem]:
    """Instruction tuning says nothing about which tokens a prefix-LM sees in both directions."""
    if settings.value(TASK) == "SFT" and settings.value("model.prefix_lm"):
        yield Problem(
            "SFT can't be with prefix_lm: its sequences have no prefix",
            settings.sources("model.prefix_lm", TASK),
            "begin with a model that was trained without --prefix-lm",
        )
