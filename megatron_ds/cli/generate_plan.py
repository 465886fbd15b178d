"""What ``megatron-ds generate`` is to do: the options against the checkpoint, before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint import find_checkpoint
from megatron_ds.cli.launcher import launch_problems
from megatron_ds.config.blocks import DataConfig, ModelConfig
from megatron_ds.config.catalog import all_options
from megatron_ds.config.layout import layout_problems
from megatron_ds.config.resolve import world_size
from megatron_ds.config.rules.common import PP, TP
from megatron_ds.config.settings import Given
from megatron_ds.errors import CheckpointError, ConfigError, MegatronDsError, Problem, Source
from megatron_ds.generation.options import Decoding, GenerationJob, Request, Sampling
from megatron_ds.generation.texts import default_new_tokens, encode_prompts, length_note, length_problems, read_prompts
from megatron_ds.tokenizers import Tokenizer, build_tokenizer

TOKENIZER_OPTIONS = tuple(
    f"data.{name}"
    for name in (
        *("tokenizer_type", "tokenizer_name_or_path", "tokenizer_model", "vocab_file", "merge_file"),
        *("vocab_extra_ids", "eod_id"),
    )
)
LAYOUT_OPTIONS = (TP, PP)


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


@dataclass(frozen=True)
class _Checkpoint:
    """What is read of a checkpoint's manifest."""

    folder: Path
    model: ModelConfig
    data: DataConfig
    precision: str

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"the checkpoint {self.folder}"


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
    problems += [*_sampling_problems(arguments), *_output_problems(arguments)]
    try:
        checkpoint = _read_checkpoint(arguments)
        layout = {path: _given(arguments, path) for path in LAYOUT_OPTIONS}
        problems += layout_problems(checkpoint.model, checkpoint.label, layout, processes)
        prompts = arguments.prompt or read_prompts(arguments.prompts_file)
        tokenizer, eod_id = _tokenizer(arguments, checkpoint)
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
    arguments: argparse.Namespace, checkpoint: _Checkpoint, prompts: Sequence[tuple[int, ...]], decoding: Decoding
) -> GenerationJob:
    tp_size, pp_size = (_given(arguments, path).value for path in LAYOUT_OPTIONS)
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


def _given(arguments: argparse.Namespace, path: str) -> Given:
    option = all_options()[path]
    value = getattr(arguments, option.name)
    return Given(option.default, "default") if value is None else Given(value, option.flag)


def _read_checkpoint(arguments: argparse.Namespace) -> _Checkpoint:
    """The manifest's model and options.

    Raises:
        CheckpointError: there is no such checkpoint, or it is of no model that this version knows, or that can write.
    """
    found = find_checkpoint(arguments.load, arguments.load_step)
    manifest, folder = found.manifest, found.folder / found.tag
    label = f"the checkpoint {folder}"
    options = manifest.options.get("data", {})
    try:
        model = ModelConfig(**manifest.model)
        # Options of other versions don't concern the tokenizer.
        data = DataConfig(**{name: options[name] for name in DataConfig.model_fields if name in options})
    except (ValueError, TypeError) as error:
        message = f"the manifest of {label} describes no model that this version knows: {error}"
        raise CheckpointError(Problem(message, advice="use the version that saved it")) from error
    if model.is_bidirectional:
        message = (
            f"{label} is a {model.model_type.upper()}: its tokens see those after them, so it can't go on with a text"
        )
        raise CheckpointError(Problem(message, advice="load the checkpoint of a GPT"))
    return _Checkpoint(folder, model, data, manifest.layout.precision)


def _tokenizer(arguments: argparse.Namespace, checkpoint: _Checkpoint) -> tuple[Tokenizer, int | None]:
    """The tokenizer that the flags or the checkpoint name, and the id that ends a document.

    Raises:
        MegatronDsError: there is none, its files are not there, or it has more ids than the model.
    """
    given: dict[str, Any] = {
        name: value
        for name in (path.partition(".")[2] for path in TOKENIZER_OPTIONS)
        if (value := getattr(arguments, name)) is not None
    }
    data, vocab_size = checkpoint.data.model_copy(update=given), checkpoint.model.vocab_size
    if data.tokenizer_type is None:
        advice = "give --tokenizer-type and its files, those that the data was preprocessed with"
        raise ConfigError(Problem(f"{checkpoint.label} names no tokenizer", advice=advice))
    tokenizer = build_tokenizer(data, vocab_size=vocab_size)
    if vocab_size is None or tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            Problem(
                f"the tokenizer has {tokenizer.vocab_size} ids, and the model {vocab_size}: it is not the model's",
                (
                    Source(
                        "tokenizer_type",
                        data.tokenizer_type,
                        "--tokenizer-type" if "tokenizer_type" in given else checkpoint.label,
                    ),
                    Source("vocab_size", str(vocab_size), checkpoint.label),
                ),
                "give the tokenizer that the data was preprocessed with",
            )
        )
    eod_id = data.eod_id if "eod_id" in given or tokenizer.eod_id is None else tokenizer.eod_id
    if eod_id is not None and eod_id >= vocab_size:
        source = Source("eod_id", str(eod_id), "--eod-id" if "eod_id" in given else checkpoint.label)
        message = f"eod_id {eod_id} is outside of the vocabulary of {vocab_size} ids"
        raise ConfigError(Problem(message, (source,), f"use an id below {vocab_size}"))
    return tokenizer, eod_id


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


def _output_problems(arguments: argparse.Namespace) -> list[Problem]:
    output: Path | None = arguments.output
    if output is None:
        return []
    if output.is_dir() or not output.absolute().parent.is_dir():
        what = "is a folder" if output.is_dir() else "can't be written: its folder does not exist"
        return [Problem(f"--output {output} {what}", advice="give the name of a file in a folder that exists")]
    if arguments.prompts_file is not None and output.resolve() == arguments.prompts_file.resolve():
        return [Problem(f"--output {output} is the file with the prompts", advice="give another name")]
    return []
