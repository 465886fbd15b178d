"""What ``megatron-ds generate`` is to do: the options against the checkpoint, before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron_ds.cli.inference import (
    NamedCheckpoint,
    find_tokenizer,
    given_layout,
    output_problems,
    problems_of_layout,
    read_checkpoint,
)
from megatron_ds.cli.launcher import launch_problems
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.resolve import world_size
from megatron_ds.errors import CheckpointError, ConfigError, MegatronDsError, Problem
from megatron_ds.generation.options import Decoding, GenerationJob, Request, Sampling
from megatron_ds.generation.texts import default_new_tokens, encode_prompts, length_note, length_problems, read_prompts
from megatron_ds.tokenizers import Tokenizer


@dataclass(frozen=True)
class Plan:
    """A job that is known to be possible, and what its texts are read and shown with.

    Attributes:
        job: what to do.
        prompts: the texts of the prompts.
        num_samples: texts of each.
        tokenizer: the model's.
        notes: what to tell before it starts.
    """

    job: GenerationJob
    prompts: tuple[str, ...]
    num_samples: int
    tokenizer: Tokenizer
    notes: tuple[str, ...]


def plan_generation(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Plan:
    """Checks the options, the checkpoint, its tokenizer, the layout and the prompts.

    Args:
        arguments: as `megatron_ds.cli.generate` parses them.
        environ: the environment.

    Raises:
        MegatronDsError: with everything that is wrong.
    """
    processes, problems = world_size(environ)
    problems += launch_problems(environ)
    problems += _sampling_problems(arguments)
    problems += output_problems(arguments.output, {"the file with the prompts": arguments.prompts_file})
    try:
        checkpoint = read_checkpoint(arguments)
        _refuse_bidirectional(checkpoint)
        problems += problems_of_layout(arguments, checkpoint, processes)
        prompts = arguments.prompt or read_prompts(arguments.prompts_file)
        tokenizer, eod_id = find_tokenizer(arguments, checkpoint)
        tokens = encode_prompts(prompts, tokenizer, eod_id, allow_special=arguments.allow_special_tokens)
    except MegatronDsError as error:
        if not problems:
            raise
        raise ConfigError([*problems, *error.problems]) from error
    model = checkpoint.model
    max_new_tokens = arguments.max_new_tokens or default_new_tokens(tokens, model)
    problems += length_problems(tokens, max_new_tokens, model, checkpoint.label)
    if problems:
        raise ConfigError(problems)
    assert model.vocab_size is not None, "the tokenizer was compared with it"
    num_ids = min(model.vocab_size, tokenizer.vocab_size)
    decoding = Decoding(max_new_tokens, eod_id, num_ids, _sampling(arguments))
    job = _job(arguments, checkpoint, tokens, decoding)
    notes = _notes(prompts, tokens, job.decoding, model)
    return Plan(job, tuple(prompts), arguments.num_samples, tokenizer, tuple(notes))


def _job(
    arguments: argparse.Namespace, checkpoint: NamedCheckpoint, prompts: Sequence[tuple[int, ...]], decoding: Decoding
) -> GenerationJob:
    tp_size, pp_size = (size.value for size in given_layout(arguments).values())
    return GenerationJob(
        checkpoint=checkpoint.folder,
        precision=arguments.dtype or checkpoint.precision,
        tp_size=tp_size,
        pp_size=pp_size,
        requests=tuple(
            Request(tokens, number, sample)
            for number, tokens in enumerate(prompts)
            for sample in range(arguments.num_samples)
        ),
        decoding=decoding,
        batch_size=arguments.batch_size,
    )


def _notes(
    prompts: Sequence[str], tokens: Sequence[Sequence[int]], decoding: Decoding, model: ModelConfig
) -> list[str]:
    notes = []
    if any(not prompt for prompt in prompts):
        notes.append("an empty prompt begins with the token that ends a document")
    if decoding.eod_id is None:
        notes.append("no token is known that ends a document: all texts get --max-new-tokens tokens")
    if note := length_note(tokens, decoding.max_new_tokens, model):
        notes.append(note)
    return notes


def _refuse_bidirectional(checkpoint: NamedCheckpoint) -> None:
    model, label = checkpoint.model, checkpoint.label
    if model.is_bidirectional:
        message = (
            f"{label} is a {model.model_type.upper()}: its tokens see those after them, so it can't go on with a text"
        )
        raise CheckpointError(Problem(message, advice="load the checkpoint of a GPT"))


def _sampling(arguments: argparse.Namespace) -> Sampling | None:
    names = ("temperature", "top_k", "top_p")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if not given:
        return None
    return Sampling(**given) if arguments.seed is None else Sampling(**given, seed=arguments.seed)


def _sampling_problems(arguments: argparse.Namespace) -> list[Problem]:
    """Greedy texts have nothing that is drawn, and are all alike."""
    is_sampling = _sampling(arguments) is not None
    if arguments.greedy and is_sampling:
        advice = "leave --greedy out, or the three others"
        return [Problem("--greedy is given together with --temperature, --top-k or --top-p", advice=advice)]
    drawn = {"--seed": arguments.seed is not None, "--num-samples": arguments.num_samples > 1}
    return [
        Problem(
            f"{flag} is given, and nothing is drawn: the likeliest token is always taken",
            advice=f"add --temperature 1, or leave {flag} out",
        )
        for flag, is_given in drawn.items()
        if is_given and not is_sampling
    ]
