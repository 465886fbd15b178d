"""Everything that can be known to be wrong before torch and DeepSpeed are imported, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron_ds.checkpoint import FoundCheckpoint, checkpoint_problems
from megatron_ds.cli.launcher import launch_problems
from megatron_ds.config import ResolvedRun, collect
from megatron_ds.config.rules import too_little_padding
from megatron_ds.data import check_data, samples_needed
from megatron_ds.errors import ConfigError, MegatronDsError, Problem, Source
from megatron_ds.tokenizers import build_tokenizer
from megatron_ds.training.monitors import monitor_problems
from megatron_ds.utils.versions import check_versions


def preflight(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[ResolvedRun, FoundCheckpoint | None]:
    """Resolves the run and checks its options, tokenizer, data files and checkpoints.

    Args:
        argv: the words after the program's name.
        environ: the environment.

    Returns:
        The run with its vocabulary size known, and the checkpoint to go on from, if any.

    Raises:
        ConfigError: with everything that is wrong.
        SystemExit: after ``--help``.
    """
    resolved, problems = collect(argv, environ)
    problems = [*check_versions(), *launch_problems(environ), *problems]
    if resolved is None:
        raise ConfigError(problems)
    resolved, vocabulary_problems = _with_vocabulary(resolved)
    run = resolved.run
    problems += vocabulary_problems
    problems += check_data(
        run.data, seq_length=run.model.seq_length, samples=samples_needed(run), vocab_size=run.model.vocab_size
    )
    problems += monitor_problems(run.logging, resolved.origins)
    found, load_problems = checkpoint_problems(run, resolved.origins)
    problems += load_problems
    if problems:
        raise ConfigError(problems)
    return resolved, found


def _with_vocabulary(resolved: ResolvedRun) -> tuple[ResolvedRun, list[Problem]]:
    """Takes the vocabulary size from the tokenizer; without one it has to be given."""
    run, given = resolved.run, resolved.run.model.vocab_size
    if run.data.tokenizer_type is None:
        if given is not None:
            return resolved, []
        advice = "give --tokenizer-type and its files, or --vocab-size when the data is tokenized elsewhere"
        return resolved, [Problem("the vocabulary size is not known: no tokenizer is given", advice=advice)]
    try:
        size = build_tokenizer(run.data, vocab_size=given).vocab_size
    except MegatronDsError as error:
        return resolved, list(error.problems)
    if given is None:
        return resolved.with_vocab_size(size), _padding_problems(resolved, size)
    if given < size:
        source = Source("vocab_size", str(given), resolved.origins["model.vocab_size"])
        message = f"vocab_size {given} is smaller than the tokenizer's vocabulary of {size} ids"
        return resolved, [Problem(message, (source,), "leave vocab_size out, or make it larger")]
    return resolved, []


def _padding_problems(resolved: ResolvedRun, vocab_size: int) -> list[Problem]:
    """Whether a given padded size holds the tokenizer's vocabulary; a given vocabulary size was compared before."""
    padded = resolved.run.model.pad_vocab_size_to
    if padded is None or padded >= vocab_size:
        return []
    source = Source("pad_vocab_size_to", str(padded), resolved.origins["model.pad_vocab_size_to"])
    return [too_little_padding(vocab_size, source)]
