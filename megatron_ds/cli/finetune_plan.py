"""What ``finetune.py`` is to do: options, model, tokenizer and examples against each other, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint import FoundCheckpoint, checkpoint_problems, find_checkpoint, training_order_problems
from megatron_ds.checkpoint.find import progress_of_load
from megatron_ds.checkpoint.fits import model_mismatches
from megatron_ds.checkpoint.schedule import saved_schedule, schedule_problems
from megatron_ds.cli.launcher import launch_problems
from megatron_ds.cli.offload import machine_problems
from megatron_ds.cli.preflight import with_tokenizer
from megatron_ds.config import ResolvedRun, collect, draft
from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.catalog import all_options
from megatron_ds.config.rules import warmup_ends_before_decay
from megatron_ds.config.settings import DEFAULT_ORIGIN, Given, Settings
from megatron_ds.errors import CheckpointError, ConfigError, MegatronDsError, Problem, Source
from megatron_ds.tasks.data import MODEL_OPTIONS, read_task_data
from megatron_ds.tasks.finetune import FinetuningJob, num_steps, task_order
from megatron_ds.tasks.pretrained import PretrainedModel, open_pretrained
from megatron_ds.tasks.task import TaskData
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.training.monitors import monitor_problems
from megatron_ds.utils.text import counted, value_text
from megatron_ds.utils.versions import check_versions

PROGRAM = "finetune.py"
_DEFAULT_EPOCHS = 3
_TASK, _STEPS, _EPOCHS = "task.task", "training.train_iters", "task.epochs"
_INTERVALS = ("training.eval_interval", "checkpoint.save_interval")
# Model options that a task decides, beside what it says itself: a pretrained model's heads and lengths don't bind it.
_FREE = frozenset({"output_head", "num_classes", "bert_binary_head"})
# Those of them that only a task says: another one's are nothing to it.
_OF_THE_HEAD = ("output_head", "num_classes")
# Options that only pretraining reads.
_OF_PRETRAINING = ("data_path", "train_data_path", "valid_data_path", "test_data_path")


@dataclass(frozen=True)
class Plan:
    """A finetuning run that is known to be possible.

    Attributes:
        resolved: the run.
        found: the checkpoint to go on from, if any.
        job: what is trained.
        notes: what to tell before it starts.
    """

    resolved: ResolvedRun
    found: FoundCheckpoint | None
    job: FinetuningJob
    notes: tuple[str, ...]


def plan_finetuning(argv: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Resolves the run and checks its options, model, tokenizer, examples and checkpoints.

    What the checkpoint says of its model and tokenizer need not be given again. Steps follow from epochs.

    Args:
        argv: the words after the program's name.
        environ: the environment.

    Raises:
        MegatronDsError: with everything that is wrong.
        SystemExit: after ``--help``.
    """
    if "--help" in argv or "-h" in argv:
        collect(argv, environ, PROGRAM)
    drafted = draft(argv, environ)
    given = drafted.values
    pretrained, known = _what_is_known(given)
    resolved, problems = collect(argv, environ, PROGRAM, None, known)
    problems = [*check_versions(), *launch_problems(environ), *_task_problems(given, drafted.failed), *problems]
    if resolved is None:
        raise ConfigError(problems)
    resolved, tokenizer, tokenizer_problems = with_tokenizer(resolved)
    problems += tokenizer_problems
    if pretrained is not None:
        problems += model_mismatches(pretrained.model, pretrained.label, resolved.run, resolved.origins, _FREE)
    if problems or tokenizer is None:
        # Reading the examples needs the task and a tokenizer.
        raise ConfigError([*problems, *([] if tokenizer or tokenizer_problems else [_no_tokenizer()])])
    data, data_problems = _read(resolved.run, tokenizer)
    if data is None:
        raise ConfigError(data_problems)
    resolved, steps_problems = _with_steps(resolved, len(data.train.examples), given)
    problems += steps_problems
    run = resolved.run
    problems += _warmup_problems(resolved)
    problems += machine_problems(resolved.deepspeed, environ)
    problems += monitor_problems(run.logging, resolved.origins)
    found, load_problems = checkpoint_problems(run, resolved.origins)
    problems += load_problems
    if found is not None:
        problems += schedule_problems(found, run, resolved.origins)
        if not run.checkpoint.finetune:
            problems += training_order_problems(found, run, task_order(run, data))
    if problems:
        raise ConfigError(problems)
    if found is not None and run.checkpoint.use_checkpoint_lr_scheduler:
        resolved = resolved.with_schedule(saved_schedule(found), f"the checkpoint {found.folder / found.tag}")
    job = FinetuningJob(resolved.run, data, pretrained)
    return Plan(resolved, found, job, tuple(_notes(resolved.run, data)))


def _what_is_known(given: Mapping[str, Given]) -> tuple[PretrainedModel | None, dict[str, Given]]:
    """The model to begin with, and the options that it and the task fill.

    Raises:
        CheckpointError: there is no such checkpoint, or it is of a model that the task has no use for.
    """
    known = {_STEPS: Given(0, f"derived: --{_EPOCHS.partition('.')[2]}")}
    task = given[_TASK].value
    resumed = _resumed(given)
    pretrained = None
    folder = given["task.pretrained_checkpoint"].value
    if resumed is not None:
        if task is not None:
            _check_task(task, resumed)
        model, data = resumed.manifest.model, resumed.manifest.options.get("data", {})
        known |= _model_options(model, f"the checkpoint {resumed.folder / resumed.tag}")
        known |= _tokenizer_options(data, f"the checkpoint {resumed.folder / resumed.tag}")
    elif folder is not None:
        pretrained = open_pretrained(Path(folder))
        if task is not None:
            _check_family(task, pretrained)
        known |= _model_options(pretrained.model.model_dump(), pretrained.label)
        known |= _tokenizer_options(pretrained.data, pretrained.label)
    if task is not None:
        for name in _OF_THE_HEAD:
            known.pop(f"model.{name}", None)
        origin = f"derived: --task {task}"
        known |= {f"model.{name}": Given(value, origin) for name, value in MODEL_OPTIONS[task].items()}
        if task == "SFT" and given["task.packing"].value:
            # Examples that share a sequence see and count their own tokens only.
            known |= {f"data.{name}": Given(True, origin) for name in ("reset_position_ids", "reset_attention_mask")}
    return pretrained, known


def _check_family(task: str, pretrained: PretrainedModel) -> None:
    """Other problems of a model of the wrong family follow from that one, so it is told alone."""
    needed, family = MODEL_OPTIONS[task]["model_type"], pretrained.model.model_type
    if family == needed:
        return
    message = f"{task} finetunes a {needed.upper()}, and {pretrained.label} is a {family.upper()}"
    others = ", ".join(name for name, options in MODEL_OPTIONS.items() if options["model_type"] == family)
    advice = f"give another --pretrained-checkpoint, or a --task of a {family.upper()}: {others}"
    raise CheckpointError(Problem(message, advice=advice))


def _check_task(task: str, resumed: FoundCheckpoint) -> None:
    """A run goes on with its own task; what else would not fit another one's is not told beside that."""
    options = resumed.manifest.options.get("task")
    before = options.get("task") if isinstance(options, dict) else None
    if before == task:
        return
    where, what = resumed.folder / resumed.tag, f"finetuning on {before}" if before else "pretraining"
    raise CheckpointError(
        Problem(
            f"--load goes on with a run, and {where} is one of {what}, not of {task}",
            advice=f"to begin {task} with its body, give the folder with --pretrained-checkpoint instead",
        )
    )


def _resumed(given: Mapping[str, Given]) -> FoundCheckpoint | None:
    """The checkpoint of ``--load``, if there is one; what is wrong with it is reported later."""
    load = given["checkpoint.load"].value
    if load is None:
        return None
    try:
        return find_checkpoint(Path(load), given["checkpoint.load_step"].value)
    except CheckpointError:
        return None


def _model_options(model: Mapping[str, Any], origin: str) -> dict[str, Given]:
    options = {f"model.{name}": Given(value, origin) for name, value in model.items() if value is not None}
    return {path: value for path, value in options.items() if path in all_options()}


def _tokenizer_options(data: Mapping[str, Any], origin: str) -> dict[str, Given]:
    names = ("tokenizer_type", "tokenizer_name_or_path", "tokenizer_model", "vocab_file", "merge_file")
    return {f"data.{name}": Given(data[name], origin) for name in names if data.get(name) is not None}


def _task_problems(given: Mapping[str, Given], failed: Collection[str]) -> Iterator[Problem]:
    """What a task needs, and what has no meaning with one."""
    task = given[_TASK].value
    if task is None and _TASK in failed:
        return  # reported where it was read
    if task is None:
        choices = ", ".join(str(choice) for choice in all_options()[_TASK].choices)
        yield Problem("finetune.py trains a task, and none is given", advice=f"give --task, one of {choices}")
        return
    for name, value in MODEL_OPTIONS[task].items():
        one = given[f"model.{name}"]
        if one.origin != DEFAULT_ORIGIN and one.value != value:
            source = _source(f"model.{name}", given)
            yield Problem(f"{task} needs {name} {value}, not {one.value}", (source,), f"leave {name} out")
    if not given["task.train_data"].value:
        yield Problem(f"{task} has no examples to train on", advice="give --train-data FILE")
    for name in _OF_PRETRAINING:
        if given[f"data.{name}"].value:
            yield Problem(
                f"{name} names token files, and a task reads its own examples",
                (_source(f"data.{name}", given),),
                "give --train-data and --valid-data instead",
            )


def _source(path: str, given: Mapping[str, Given]) -> Source:
    return Source(path.partition(".")[2], value_text(given[path].value), given[path].origin)


def _no_tokenizer() -> Problem:
    advice = "give --tokenizer-type and its files: those of the pretrained model"
    return Problem("a task's examples are texts, and no tokenizer is given", advice=advice)


def _read(run: RunConfig, tokenizer: Tokenizer) -> tuple[TaskData | None, list[Problem]]:
    try:
        return read_task_data(run, tokenizer), []
    except MegatronDsError as error:
        return None, list(error.problems)


def _with_steps(
    resolved: ResolvedRun, num_examples: int, given: Mapping[str, Given]
) -> tuple[ResolvedRun, list[Problem]]:
    """Fills the number of steps, and evaluates and saves at the end of every epoch where nobody says otherwise.

    A run_config.json has epochs and steps, which agree.
    """
    run = resolved.run
    epochs = run.task.epochs if run.task.epochs is not None else _DEFAULT_EPOCHS
    of_epoch, steps = num_steps(num_examples, run.global_batch_size, epochs)
    progress = progress_of_load(run)
    if progress:
        # Earlier steps may have had other batches.
        left = steps * run.global_batch_size - progress["consumed_samples"]
        steps = progress["step"] + max(0, left) // run.global_batch_size
    values, problems = {}, []
    if given[_STEPS].value is None:
        origin = f"derived: {counted(epochs, 'epoch')} of {counted(num_examples, _unit(run))}"
        values[_STEPS] = Given(steps, origin)
    elif given[_EPOCHS].value is not None and given[_STEPS].value != steps:
        problems.append(
            Problem(
                f"{counted(epochs, 'epoch')} of {counted(num_examples, 'example')} are {counted(steps, 'step')}, and "
                f"train_iters is {given[_STEPS].value}",
                tuple(_source(path, given) for path in (_EPOCHS, _STEPS)),
                "keep one of the two",
            )
        )
    for path in _INTERVALS:
        if given[path].origin == DEFAULT_ORIGIN and (path != "checkpoint.save_interval" or run.checkpoint.save):
            values[path] = Given(of_epoch, "derived: an epoch")
    return resolved.with_values(values), problems


def _unit(run: RunConfig) -> str:
    """What a batch is counted in: packed examples share sequences."""
    return "sequence" if run.task.task == "SFT" and run.task.packing else "example"


def _warmup_problems(resolved: ResolvedRun) -> Iterator[Problem]:
    """The rule that could not be checked before the number of steps was known."""
    given = {
        path: Given(getattr(getattr(resolved.run, option.block), option.name), resolved.origins[path])
        for path, option in all_options().items()
    }
    return warmup_ends_before_decay(Settings(given, resolved.run.world_size))


def _notes(run: RunConfig, data: TaskData) -> Iterator[str]:
    """What is trained and judged, in a few lines."""
    of_epoch, _ = num_steps(len(data.train.examples), run.global_batch_size, 1)
    sets = ", ".join(f"{one.name} {len(one.examples)}" for one in (*data.valid, *data.test)) or "none"
    yield (
        f"{data.task.name}: {counted(len(data.train.examples), f'training {_unit(run)}')}, "
        f"{counted(of_epoch, 'step')} an epoch; other sets: {sets}"
    )
