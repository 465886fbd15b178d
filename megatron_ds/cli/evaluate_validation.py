"""``megatron-ds evaluate --task VALIDATION``: a run's validation sets from the options that its checkpoint keeps."""

from __future__ import annotations

import argparse
from typing import Any

from megatron_ds.cli.inference import TOKENIZER_OPTIONS, NamedCheckpoint
from megatron_ds.config.blocks import (
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    TaskConfig,
    TrainingConfig,
)
from megatron_ds.data import other_tokenizers, run_data_problems
from megatron_ds.data.samples import SampleCounts
from megatron_ds.data.sources import parse_sources
from megatron_ds.errors import CheckpointError, ConfigError, DataError, Problem, Source
from megatron_ds.tasks.zeroshot.job import ValidationTask
from megatron_ds.tokenizers import Tokenizer, build_tokenizer

# All documents are evaluated.
_WHOLE = "0,1,0"


def validation_task(arguments: argparse.Namespace, checkpoint: NamedCheckpoint) -> ValidationTask:
    """The sets that the flags name, or those of the run.

    Args:
        arguments: as `megatron_ds.cli.evaluate_options` parses them.
        checkpoint: the checkpoint.

    Raises:
        MegatronDsError: there is no data, it does not fit the model or its tokenizer, or it is not known how much of it
            is meant.
    """
    if checkpoint.model.output_head != "lm":
        message = f"{checkpoint.label} has no head for tokens, and VALIDATION asks for their losses"
        source = Source("output_head", checkpoint.model.output_head, checkpoint.label)
        raise CheckpointError(Problem(message, (source,), "give the task that it was finetuned on"))
    if arguments.split is not None and arguments.data_path is None:
        raise ConfigError(Problem("--split is given without --data-path", advice="give both, or leave --split out"))
    run = saved_run(checkpoint, _data(arguments, checkpoint.data))
    num_samples = arguments.eval_samples or _samples_of_run(checkpoint)
    if not num_samples:
        message = f"how many samples to evaluate is not known: {checkpoint.label} keeps no --eval-iters of a run"
        raise ConfigError(Problem(message, advice="give --eval-samples N"))
    data = run.data
    tokenizer = build_tokenizer(data, vocab_size=run.model.vocab_size) if data.tokenizer_type is not None else None
    counts = SampleCounts(train=0, valid=num_samples, test=0)
    problems = _fit_problems(checkpoint, tokenizer) or run_data_problems(run, tokenizer, counts)
    if not problems and tokenizer is not None:
        problems = other_tokenizers(data, tokenizer.fingerprint)
    if problems:
        raise DataError(problems)
    return ValidationTask(run, num_samples)


def _data(arguments: argparse.Namespace, saved: DataConfig) -> DataConfig:
    names = [path.partition(".")[2] for path in TOKENIZER_OPTIONS] + ["data_cache_path"]
    given: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.data_path is not None:
        given |= {name: [] for name in DataConfig.model_fields if name.endswith(("data_path", "split_paths"))}
        given |= {"data_path": arguments.data_path, "split": arguments.split or _WHOLE}
    data = saved.model_copy(update=given)
    has_data = data.data_path or data.valid_data_path or data.valid_weighted_split_paths
    if not has_data or all(blend.split != "valid" for blend in parse_sources(data)):
        raise ConfigError(
            Problem("there is no validation data", advice="give --data-path, and a second share where --split is given")
        )
    return data


def saved_run(checkpoint: NamedCheckpoint, data: DataConfig, task: str | None = None) -> RunConfig:
    """A run with the checkpoint's samples; what does not concern them is as good as any.

    Args:
        checkpoint: the checkpoint.
        data: its data options, or others.
        task: what the model was finetuned on.
    """
    training = _known(TrainingConfig, checkpoint.manifest.options.get("training", {}))
    return RunConfig(
        model=checkpoint.model,
        parallel=ParallelConfig(),
        data=data,
        training=TrainingConfig(**{"micro_batch_size": 1, "train_iters": 0} | training),
        optimizer=OptimizerConfig(lr=1.0),
        checkpoint=CheckpointConfig(),
        logging=LoggingConfig(),
        task=TaskConfig.model_validate({"task": task}),
    )


def _known(block: type[TrainingConfig], options: dict[str, Any]) -> dict[str, Any]:
    """Options of other versions don't concern the samples."""
    return {name: value for name, value in options.items() if name in block.model_fields}


def _samples_of_run(checkpoint: NamedCheckpoint) -> int | None:
    """Samples of each of the run's evaluations; None where the checkpoint does not say it."""
    training = checkpoint.manifest.options.get("training", {})
    if "eval_iters" not in training:
        return None
    batch: int | None = training.get("global_batch_size")
    if batch is None:
        batch = training["micro_batch_size"] * checkpoint.manifest.layout.dp_size
    return int(training["eval_iters"]) * batch


def _fit_problems(checkpoint: NamedCheckpoint, tokenizer: Tokenizer | None) -> list[Problem]:
    vocab_size = checkpoint.model.vocab_size
    if tokenizer is None or vocab_size is None or tokenizer.vocab_size <= vocab_size:
        return []
    message = f"the tokenizer has {tokenizer.vocab_size} ids, and the model {vocab_size}: it is not the model's"
    return [Problem(message, advice="give the tokenizer that the data was preprocessed with")]
