"""What ``megatron-ds evaluate`` is to do: its options against the checkpoint and files, before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from megatron_ds.cli.evaluate_options import (
    DEFAULT_OVERLAPPING_EVAL,
    FINETUNED,
    HARNESS_PREFIX,
    LAMBADA,
    VALIDATION,
    WIKITEXT103,
)
from megatron_ds.cli.evaluate_validation import validation_task
from megatron_ds.cli.inference import (
    NamedCheckpoint,
    find_tokenizer,
    given_layout,
    output_problems,
    problems_of_layout,
    read_checkpoint,
)
from megatron_ds.cli.launcher import launch_problems
from megatron_ds.config.resolve import world_size
from megatron_ds.config.spelling import did_you_mean
from megatron_ds.errors import CheckpointError, ConfigError, MegatronDsError, Problem, Source
from megatron_ds.tasks.zeroshot.job import (
    EvaluationJob,
    EvaluationTask,
    FinetunedTask,
    HarnessTask,
    TextTask,
    ValidationTask,
)
from megatron_ds.tasks.zeroshot.lambada import lambada_task
from megatron_ds.tasks.zeroshot.text_file import sha256_of
from megatron_ds.tasks.zeroshot.wikitext import wikitext_task
from megatron_ds.tokenizers import Tokenizer

# The options that mean something for each kind of task.
_OPTIONS = {
    LAMBADA: ("valid_data", "strict_lambada", "seq_length"),
    WIKITEXT103: ("valid_data", "overlapping_eval", "seq_length"),
    VALIDATION: ("data_path", "split", "data_cache_path", "eval_samples"),
    HARNESS_PREFIX: ("include_path", "num_fewshot", "limit", "seq_length"),
    **dict.fromkeys(FINETUNED, ("valid_data",)),
}


_VALID_DATA = "the file of --valid-data"


@dataclass(frozen=True)
class Plan:
    """An evaluation that is known to be possible.

    Attributes:
        job: what to do.
        described: what is evaluated, for the file of numbers.
        notes: what to tell before it starts.
    """

    job: EvaluationJob
    described: Mapping[str, Any]
    notes: tuple[str, ...]


def plan_evaluation(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Plan:
    """Checks the options, the checkpoint, its tokenizer, the layout and the files.

    Args:
        arguments: as `megatron_ds.cli.evaluate_options` parses them.
        environ: the environment.

    Raises:
        MegatronDsError: with everything that is wrong.
    """
    processes, problems = world_size(environ)
    problems += [*launch_problems(environ), *_task_problems(arguments)]
    files = arguments.valid_data or ()
    problems += [problem for file in files for problem in output_problems(arguments.output, {_VALID_DATA: file})]
    if not files:
        problems += output_problems(arguments.output, {})
    if problems:
        raise ConfigError(problems)
    checkpoint = read_checkpoint(arguments)
    problems += problems_of_layout(arguments, checkpoint, processes)
    try:
        task = _task(arguments, checkpoint)
    except MegatronDsError as error:
        if not problems:
            raise
        raise ConfigError([*problems, *error.problems]) from error
    if problems:
        raise ConfigError(problems)
    tp_size, pp_size = (size.value for size in given_layout(arguments).values())
    precision = arguments.dtype or checkpoint.precision
    job = EvaluationJob(checkpoint.folder, precision, tp_size, pp_size, arguments.batch_size, task)
    return Plan(job, _described(arguments, checkpoint, job), task.notes if isinstance(task, TextTask) else ())


def _kind(arguments: argparse.Namespace) -> str:
    """The one kind of task that is asked for, a key of `_OPTIONS`; '' where there is none, or are several."""
    kinds = {HARNESS_PREFIX if name.startswith(HARNESS_PREFIX) else name for name in arguments.task}
    is_one = len(kinds) == 1 and (len(arguments.task) == 1 or kinds == {HARNESS_PREFIX})
    return kinds.pop() if is_one and kinds <= _OPTIONS.keys() else ""


def _task_problems(arguments: argparse.Namespace) -> list[Problem]:
    kind = _kind(arguments)
    if not kind:
        return [_unknown_task(arguments.task)]
    others = {name for names in _OPTIONS.values() for name in names} - set(_OPTIONS[kind])
    problems = [
        Problem(f"--{name.replace('_', '-')} means nothing for --task {arguments.task[0]}", advice="leave it out")
        for name in sorted(others)
        if getattr(arguments, name) not in (None, False)
    ]
    if "valid_data" in _OPTIONS[kind] and arguments.valid_data is None:
        problems.append(Problem(f"--task {kind} needs a file", advice="give --valid-data FILE"))
    elif kind in (LAMBADA, WIKITEXT103) and len(arguments.valid_data) > 1:
        problems.append(Problem(f"--task {kind} takes one file, and {len(arguments.valid_data)} are given"))
    if kind == HARNESS_PREFIX:
        problems += _harness_problems(arguments)
    return problems


def _unknown_task(names: Sequence[str]) -> Problem:
    finetuned = f"{', '.join(FINETUNED)} of a finetuned model"
    advice = f"give {LAMBADA}, {WIKITEXT103}, {VALIDATION}, one of {finetuned}, or one or more {HARNESS_PREFIX}NAME"
    if list(names) == ["SFT"]:
        advice = "finetune.py --task SFT reports the loss of --valid-data itself; megatron-ds generate writes texts"
    guess = did_you_mean(names[0], _OPTIONS) if len(names) == 1 else ""
    return Problem(f"--task {' '.join(names)} is not one task that is known{guess}", advice=advice)


def _harness_problems(arguments: argparse.Namespace) -> list[Problem]:
    problems = []
    if find_spec("lm_eval") is None:
        message = "lm-evaluation-harness is not installed"
        problems.append(Problem(message, advice='pip install "megatron-ds[eval]"'))
    if arguments.include_path is not None and not arguments.include_path.is_dir():
        problems.append(Problem(f"--include-path {arguments.include_path} is no folder", advice="check the path"))
    if any(name == HARNESS_PREFIX for name in arguments.task):
        problems.append(Problem(f"--task {HARNESS_PREFIX} names no task", advice=f"give {HARNESS_PREFIX}NAME"))
    return problems


def _task(arguments: argparse.Namespace, checkpoint: NamedCheckpoint) -> EvaluationTask:
    kind = _kind(arguments)
    if kind == VALIDATION:
        return validation_task(arguments, checkpoint)
    if kind in FINETUNED:
        # Their examples become tensors, so torch comes along.
        from megatron_ds.cli.evaluate_finetuned import finetuned_task

        return finetuned_task(arguments, checkpoint, kind)
    if checkpoint.model.is_bidirectional:
        family = checkpoint.model.model_type.upper()
        message = (
            f"{checkpoint.label} is a {family}: its tokens see those after them, so it can't be asked for the next one"
        )
        advice = f"load the checkpoint of a GPT, or ask for --task {VALIDATION}"
        raise CheckpointError(Problem(message, advice=advice))
    tokenizer, eod_id = find_tokenizer(arguments, checkpoint)
    return _next_token_task(arguments, kind, tokenizer, eod_id, _window(arguments, checkpoint))


def _next_token_task(
    arguments: argparse.Namespace, kind: str, tokenizer: Tokenizer, eod_id: int | None, length: int
) -> EvaluationTask:
    if kind == LAMBADA:
        return lambada_task(arguments.valid_data[0], tokenizer, length, strict=arguments.strict_lambada)
    if kind == WIKITEXT103:
        stride = arguments.overlapping_eval or min(DEFAULT_OVERLAPPING_EVAL, length)
        if stride > length:
            message = f"--overlapping-eval {stride} is more than the {length} tokens that the model sees at once"
            raise ConfigError(Problem(message, advice=f"give {length} for windows that don't overlap, or less"))
        return wikitext_task(arguments.valid_data[0], tokenizer, length, stride=stride)
    names = tuple(name.removeprefix(HARNESS_PREFIX) for name in arguments.task)
    return HarnessTask(names, arguments.include_path, arguments.num_fewshot, arguments.limit, tokenizer, eod_id, length)


def _window(arguments: argparse.Namespace, checkpoint: NamedCheckpoint) -> int:
    """Tokens that the model sees at once."""
    model = checkpoint.model
    length: int = arguments.seq_length or model.seq_length
    if model.has_learned_positions and length > model.num_positions:
        sources = (
            Source("seq_length", str(length), "--seq-length"),
            Source("max_position_embeddings", str(model.num_positions), checkpoint.label),
        )
        message = f"--seq-length {length} is more than the {model.num_positions} positions that the model has learned"
        raise ConfigError(Problem(message, sources, f"give {model.num_positions} or less"))
    return length


def _described(arguments: argparse.Namespace, checkpoint: NamedCheckpoint, job: EvaluationJob) -> dict[str, Any]:
    task, kind = job.task, _kind(arguments)
    options: dict[str, Any] = {name: getattr(arguments, name) for name in _OPTIONS[kind]}
    if "seq_length" in options:
        options["seq_length"] = _window(arguments, checkpoint)
    if kind == WIKITEXT103:
        options["overlapping_eval"] = arguments.overlapping_eval or min(DEFAULT_OVERLAPPING_EVAL, options["seq_length"])
    if isinstance(task, ValidationTask):
        options["eval_samples"] = task.num_samples
    files = options.pop("valid_data", None) or ()
    described = {
        "checkpoint": str(checkpoint.folder),
        "step": checkpoint.manifest.progress.get("step"),
        "dtype": job.precision,
        "task": arguments.task,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
    }
    if files:
        hashes = [each.digest for each in task.sets] if isinstance(task, FinetunedTask) else map(sha256_of, files)
        pairs = zip(files, hashes, strict=True)
        described["files"] = [{"path": str(file), "sha256": digest} for file, digest in pairs]
    return described
