"""Everything that can be known to be wrong before torch and DeepSpeed are imported, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from megatron_ds.checkpoint import FoundCheckpoint, checkpoint_problems, progress_of_load, training_order_problems
from megatron_ds.checkpoint.schedule import saved_schedule, schedule_problems
from megatron_ds.cli.launcher import launch_problems
from megatron_ds.cli.offload import machine_problems
from megatron_ds.config import ResolvedRun, collect
from megatron_ds.config.rules import PROGRAMS, padding_step, too_little_padding
from megatron_ds.config.settings import DEFAULT_ORIGIN
from megatron_ds.data import TrainingOrder, other_tokenizers, run_data_problems, samples_needed
from megatron_ds.errors import ConfigError, MegatronDsError, Problem, Source
from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from megatron_ds.training.monitors import monitor_problems
from megatron_ds.utils.versions import check_versions


def preflight(
    argv: Sequence[str], environ: Mapping[str, str], family: str = "gpt"
) -> tuple[ResolvedRun, FoundCheckpoint | None]:
    """Resolves the run and checks its options, tokenizer, data files and checkpoints.

    Args:
        argv: the words after the program's name.
        environ: the environment.
        family: of the models that the program trains.

    Returns:
        The run with what it needs to know of the tokenizer (vocabulary size, end-of-document id), and the checkpoint to
        go on from, if any.

    Raises:
        ConfigError: with everything that is wrong.
        SystemExit: after ``--help``.
    """
    resolved, problems = collect(argv, environ, PROGRAMS[family], family)
    problems = [*check_versions(), *launch_problems(environ), *problems]
    if resolved is None:
        raise ConfigError(problems)
    resolved, tokenizer_problems, data_problems = check_run_data(resolved, progress_of_load(resolved.run))
    run = resolved.run
    problems += tokenizer_problems + data_problems
    problems += machine_problems(resolved.deepspeed, environ)
    problems += monitor_problems(run.logging, resolved.origins)
    found, load_problems = checkpoint_problems(run, resolved.origins)
    problems += load_problems
    if found is not None:
        problems += schedule_problems(found, run, resolved.origins)
        if not data_problems and not run.checkpoint.finetune:
            problems += training_order_problems(found, run, TrainingOrder.of(run))
    if problems:
        raise ConfigError(problems)
    if found is not None and run.checkpoint.use_checkpoint_lr_scheduler:
        resolved = resolved.with_schedule(saved_schedule(found), f"the checkpoint {found.folder / found.tag}")
    return resolved, found


def check_run_data(
    resolved: ResolvedRun, progress: Mapping[str, int] = MappingProxyType({})
) -> tuple[ResolvedRun, list[Problem], list[Problem]]:
    """Checks tokenizer and data of a run that is to be started, or only looked at.

    Args:
        resolved: the run.
        progress: step and consumed samples that it begins at.

    Returns:
        The run with what it needs to know of the tokenizer, the tokenizer's problems, and those of the data.
    """
    resolved, tokenizer, tokenizer_problems = with_tokenizer(resolved)
    run = resolved.run
    data_problems = run_data_problems(run, tokenizer, samples_needed(run, **progress))
    if tokenizer is not None and not data_problems:
        try:
            data_problems += other_tokenizers(run.data, tokenizer.fingerprint)
        except MegatronDsError as error:
            data_problems += error.problems
    return resolved, tokenizer_problems, data_problems


def with_tokenizer(resolved: ResolvedRun) -> tuple[ResolvedRun, Tokenizer | None, list[Problem]]:
    """Takes from the tokenizer what the run needs to know of it; without one it has to be given.

    Returns:
        The run, the tokenizer if there is one, and the problems.
    """
    run = resolved.run
    tokenizer: Tokenizer | None = None
    if run.data.tokenizer_type is not None:
        try:
            tokenizer = build_tokenizer(run.data, vocab_size=run.model.vocab_size)
        except MegatronDsError as error:
            return resolved, None, list(error.problems)
    resolved, vocabulary_problems = _with_vocabulary(resolved, tokenizer)
    resolved, eod_problems = _with_eod(resolved, tokenizer)
    return resolved, tokenizer, vocabulary_problems + eod_problems


def _with_vocabulary(resolved: ResolvedRun, tokenizer: Tokenizer | None) -> tuple[ResolvedRun, list[Problem]]:
    """Takes the vocabulary size from the tokenizer."""
    given = resolved.run.model.vocab_size
    if tokenizer is None:
        if given is not None:
            return resolved, []
        advice = "give --tokenizer-type and its files, or --vocab-size when the data is tokenized elsewhere"
        return resolved, [Problem("the vocabulary size is not known: no tokenizer is given", advice=advice)]
    size = tokenizer.vocab_size
    if given is None:
        return resolved.with_vocab_size(size), _padding_problems(resolved, size)
    if given < size:
        source = Source("vocab_size", str(given), resolved.origins["model.vocab_size"])
        message = f"vocab_size {given} is smaller than the tokenizer's vocabulary of {size} ids"
        # Data and end-of-document ids are the tokenizer's: compared with its size, they give no problem of their own.
        enough = resolved.with_vocab_size(size)
        return enough, [Problem(message, (source,), f"leave vocab_size out, or give {size} or more")]
    return resolved, []


def _with_eod(resolved: ResolvedRun, tokenizer: Tokenizer | None) -> tuple[ResolvedRun, list[Problem]]:
    """Takes the id that ends a document from the tokenizer, when the run has to know it."""
    data, vocab_size = resolved.run.data, resolved.run.model.vocab_size
    of_tokenizer = None if tokenizer is None else tokenizer.eod_id
    source = Source("eod_id", str(data.eod_id), resolved.origins["data.eod_id"])
    if data.eod_id is None:
        if not data.document_options:
            return resolved, []
        if of_tokenizer is None:
            return resolved, [_no_eod(resolved, tokenizer)]
        return resolved.with_eod_id(of_tokenizer), []
    if of_tokenizer is not None and data.eod_id != of_tokenizer:
        message = f"eod_id {data.eod_id} is not the tokenizer's end-of-document id {of_tokenizer}"
        advice = "leave eod_id out, or give the tokenizer that the data was preprocessed with"
        return resolved, [Problem(message, (source,), advice)]
    if vocab_size is not None and data.eod_id >= vocab_size:
        message = f"eod_id {data.eod_id} is outside of the vocabulary of {vocab_size} ids"
        return resolved, [Problem(message, (source,), f"use an id below {vocab_size}")]
    return resolved, []


def _no_eod(resolved: ResolvedRun, tokenizer: Tokenizer | None) -> Problem:
    names = resolved.run.data.document_options
    why = "no tokenizer is given" if tokenizer is None else f"{resolved.run.data.tokenizer_type} has no token for that"
    return Problem(
        f"{', '.join(names)}: the id that ends a document is not known, for {why}",
        tuple(Source(name, "true", resolved.origins[f"data.{name}"]) for name in names),
        "give --eod-id when the data has one, or leave these options out",
    )


def _padding_problems(resolved: ResolvedRun, vocab_size: int) -> list[Problem]:
    """Whether a given padded size holds the tokenizer's vocabulary; a given vocabulary size was compared before."""
    padded = resolved.run.model.pad_vocab_size_to
    if padded is None or padded >= vocab_size:
        return []
    source = Source("pad_vocab_size_to", str(padded), resolved.origins["model.pad_vocab_size_to"])
    step = padding_step(
        resolved.run.parallel.tensor_model_parallel_size,
        resolved.run.model.make_vocab_size_divisible_by,
        divisor_is_given=resolved.origins["model.make_vocab_size_divisible_by"] != DEFAULT_ORIGIN,
    )
    return [too_little_padding(vocab_size, source, step)]
