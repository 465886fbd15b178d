"""From a command line to a checked run: where defaults, presets, files and flags meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from megatron_ds.config.accelerator import accelerator_is_cpu
from megatron_ds.config.block_reader import Block, block_of_config_file, read_block, read_preset
from megatron_ds.config.blocks import MOST_RANKS, RunConfig, default_zero_stage
from megatron_ds.config.catalog import all_options, block_classes, convert_json
from megatron_ds.config.deepspeed_final import deepspeed_config
from megatron_ds.config.deepspeed_reader import DeepSpeedFile, read_deepspeed_keys
from megatron_ds.config.files import read_block_file, read_deepspeed_config
from megatron_ds.config.flags import CommandLine, no_groups_problem, no_pipeline_problem, parse_command_line
from megatron_ds.config.help import help_text
from megatron_ds.config.idle import idle_notes
from megatron_ds.config.merge import merge_batch_sizes, merge_claims
from megatron_ds.config.notes import auto_notes, preset_notes
from megatron_ds.config.passed_checks import passed_problems
from megatron_ds.config.resolved import Draft, ResolvedRun
from megatron_ds.config.rules import (
    PROGRAMS,
    attention_backend_on_cpu,
    broken_rules,
    fp16_on_cpu,
    program_problems,
    task_is_named,
)
from megatron_ds.config.settings import Given, Settings, shortened, wrong_option_value
from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.utils.text import counted

_FAMILY = "model.model_type"
# Each of these says what is trained on.
_TASK = "task.task"
_NAMES_OF_DATA = ("data.data_path", "data.train_data_path", "data.train_weighted_split_paths", _TASK)


@dataclass
class _Sources:
    """Everything that was read, before it is put together."""

    line: CommandLine
    file: DeepSpeedFile = field(default_factory=DeepSpeedFile)
    blocks: list[Block] = field(default_factory=list)
    preset: dict[str, Given] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def block_options(self) -> dict[str, Given]:
        """What blocks say, by path; later ones stand over earlier ones."""
        options: dict[str, Given] = {}
        for block in self.blocks:
            options |= block.options
        return options

    @property
    def options(self) -> dict[str, Given]:
        """What blocks and flags say, by path; flags stand over blocks."""
        return self.block_options | self.line.options

    @property
    def failed(self) -> set[str]:
        """Options whose value is wrong: they are reported, and not missing."""
        return self.line.failed.union(self.file.failed, *(block.failed for block in self.blocks))


def resolve(argv: Sequence[str], environ: Mapping[str, str], program: str) -> ResolvedRun:
    """Resolves and checks a run. Imports neither torch nor deepspeed.

    Args:
        argv: the words after the program's name.
        environ: the environment; ``WORLD_SIZE`` is the number of processes (1 when unset).
        program: the program's name, for ``--help``.

    Returns:
        The run.

    Raises:
        ConfigError: with all problems in it.
        SystemExit: after ``--help``.
    """
    resolved, problems = collect(argv, environ, program)
    if problems:
        raise ConfigError(problems)
    assert resolved is not None, "without problems there is a run"
    return resolved


def collect(
    argv: Sequence[str],
    environ: Mapping[str, str],
    program: str = "pretrain_gpt.py",
    family: str | None = None,
    known: Mapping[str, Given] = MappingProxyType({}),
) -> tuple[ResolvedRun | None, list[Problem]]:
    """Resolves a run as `resolve` does, and returns its problems, so that others can be added to the same report.

    Args:
        argv: the words after the program's name.
        environ: the environment.
        program: the program's name, for ``--help``.
        family: the one family of models that the program pretrains; None for a program that takes all.
        known: what is known of the run from elsewhere, by path; below presets, files and flags.

    Returns:
        The run, or None when it isn't even complete, and all problems. With problems, a run's options are good enough
        to look for data and checkpoints, and its DeepSpeed dict is empty.

    Raises:
        SystemExit: after ``--help``.
    """
    line = parse_command_line(argv)
    if "--help" in line.switches:
        if environ.get("RANK", "0") == "0":
            print(help_text(program))
        raise SystemExit(0)
    sources = _read_all(line)
    if family is not None:
        sources.preset.setdefault(_FAMILY, Given(family, PROGRAMS[family]))
    sources.preset = {**known, **sources.preset}
    settings, problems = _settled(sources, environ)
    if family is not None:
        problems += program_problems(family, settings)
        problems += task_is_named(settings) if _TASK not in sources.failed else []
    problems = sources.problems + problems
    missing = _missing_options(settings, sources)
    problems += missing
    problems += passed_problems(sources.file, settings)
    if missing or any(path not in settings for path in sources.failed if all_options()[path].required):
        return None, problems
    run = _build(settings)
    origins = {path: settings.origin(path) for path in all_options()}
    final = {} if problems else deepspeed_config(run, sources.file.passed)
    autos = auto_notes(sources.file, run, final, origins)
    notes = (*_notes(sources, settings, environ), *autos)
    return ResolvedRun(run, final, origins, "--print-config" in line.switches, notes), problems


def draft(argv: Sequence[str], environ: Mapping[str, str], family: str | None = None) -> Draft:
    """What is known of a run that can't be started: the values in force, rules and missing options aside.

    Args:
        argv: the words after the program's name.
        environ: the environment.
        family: as that of `collect`.
    """
    line = parse_command_line(argv)
    sources = _read_all(line)
    if family is not None:
        sources.preset.setdefault(_FAMILY, Given(family, PROGRAMS[family]))
    settings, _ = _settled(sources, environ)
    missing = Given(None, "missing or wrong")
    values = {
        path: missing
        if option.required and path not in settings
        else Given(settings.value(path), settings.origin(path))
        for path, option in all_options().items()
    }
    notes = tuple(_notes(sources, settings, environ))
    return Draft(values, "--print-config" in line.switches, notes, frozenset(sources.failed))


def _notes(sources: _Sources, settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    yield from sources.notes
    yield from sources.file.notes
    preset = sources.line.texts.get("--model-preset")
    yield from preset_notes(preset, sources.preset, sources.block_options, sources.line.options)
    yield from idle_notes(sources.options, settings, on_cpu=accelerator_is_cpu(environ))


def _read_all(line: CommandLine) -> _Sources:
    """Reads the files that the command line names."""
    sources = _Sources(line, problems=list(line.problems))
    if "--deepspeed-config" in line.texts:
        _read_deepspeed_file(sources, line.texts["--deepspeed-config"])
    if "--config" in line.texts:
        try:
            content, prefix = block_of_config_file(read_block_file(line.texts["--config"]))
            sources.blocks.append(read_block(content, prefix))
        except ConfigError as error:
            sources.problems += error.problems
    sources.problems += [problem for block in sources.blocks for problem in block.problems]
    _read_preset(sources)
    return sources


def _read_deepspeed_file(sources: _Sources, name: str) -> None:
    try:
        file = read_deepspeed_config(name)
    except ConfigError as error:
        sources.problems += error.problems
        return
    sources.notes += [file.note] if file.note else []
    sources.file = read_deepspeed_keys(file)
    sources.problems += sources.file.problems
    if "megatron_ds" in file.content:
        sources.blocks.append(read_block(file.content["megatron_ds"], f"{file.label}: megatron_ds."))


def _read_preset(sources: _Sources) -> None:
    """Reads the model preset: the flag's, else the last block's that names one."""
    named = [block.preset for block in sources.blocks if block.preset is not None]
    if "--model-preset" in sources.line.texts:
        named.append(Given(sources.line.texts["--model-preset"], "--model-preset"))
    if named:
        sources.preset, problems, note = read_preset(named[-1])
        sources.problems += problems
        sources.notes += [note] if note else []


def _settled(sources: _Sources, environ: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """Puts all values together in their order, fills what follows from others, and checks the rules."""
    given, problems = merge_claims({**sources.preset, **sources.options}, sources.file)
    processes, world_problems = world_size(environ)
    settings = Settings(given, processes.value, processes.origin)
    filled, batch_problems = merge_batch_sizes(settings, sources.file.accumulation)
    settings, range_problems = _with_derived(settings, filled)
    if sources.file.accumulation is not None and "training.global_batch_size" in settings:
        sources.file.failed.add("training.micro_batch_size")  # not missing: it follows, or can't, which is reported
    problems = [*world_problems, *problems, *batch_problems, *range_problems, *broken_rules(settings)]
    if accelerator_is_cpu(environ):
        problems += [fp16_on_cpu(settings)] if settings.value("training.fp16") else []
        problems += attention_backend_on_cpu(settings)
    pp_path = "parallel.pipeline_model_parallel_size"
    if "--no-pipeline-parallel" in sources.line.switches and settings.value(pp_path) > 1:
        problems.append(no_pipeline_problem(settings.value(pp_path), settings.origin(pp_path)))
    groups = "model.num_query_groups"
    if "--group-query-attention" in sources.line.switches and settings.value(groups) is None:
        problems.append(no_groups_problem(settings.origin(groups)))
    if settings.value("parallel.zero_stage") is None:
        stage = Given(
            default_zero_stage(settings.precision, settings.value(pp_path)),
            "derived: 0 for fp32 without a pipeline, else 1",
        )
        settings = settings.with_given({"parallel.zero_stage": stage})
    return settings, problems


def _with_derived(settings: Settings, derived: Mapping[str, Given]) -> tuple[Settings, list[Problem]]:
    """Adds values that follow from others: products that may be out of range where their factors are not."""
    problems = []
    for path, given in derived.items():
        option = all_options()[path]
        try:
            convert_json(option, given.value)
        except ValueError as error:
            problems.append(wrong_option_value(option, given.value, given.origin, error))
        else:
            settings = settings.with_given({path: given})
    return settings, problems


def world_size(environ: Mapping[str, str]) -> tuple[Given, list[Problem]]:
    """The number of processes, 1 where ``WORLD_SIZE`` is unset or wrong, and the problem of a wrong one."""
    text = environ.get("WORLD_SIZE", "1")
    origin = "WORLD_SIZE" if "WORLD_SIZE" in environ else "WORLD_SIZE, which is not set"
    # The length goes first: Python refuses to read numbers of thousands of digits.
    if text.isdecimal() and len(text) <= len(str(MOST_RANKS)) and 0 < int(text) <= MOST_RANKS:
        return Given(int(text), origin), []
    source = Source("WORLD_SIZE", shortened(text), "the environment")
    message = f"the number of processes is a whole number from 1 to {MOST_RANKS}"
    return Given(1, origin), [Problem(message, (source,), "see to the launcher")]


def _missing_options(settings: Settings, sources: _Sources) -> list[Problem]:
    """One problem that lists every required option that nobody gave."""
    absent = [
        option
        for option in all_options().values()
        if option.required and option.path not in settings and option.path not in sources.failed
    ]
    if not absent:
        return []
    names = [*absent, *(all_options()[path] for path in _needed_later(settings, sources) if path not in sources.failed)]
    lines = [f"{option.flag}, or {option.json_key} in a JSON" for option in names]
    for key, path in sources.file.autos.items():
        if path in [option.path for option in absent]:
            lines.append(f'({sources.file.label}: {key} is "auto", and no flag or block fills it)')
    return [
        Problem(
            f"{counted(len(names), 'required option is', 'required options are')} missing: "
            + ", ".join(option.name for option in names),
            advice="give\n" + "\n".join(f"    {line}" for line in lines),
        )
    ]


def _needed_later(settings: Settings, sources: _Sources) -> Iterator[str]:
    """Options that are missed when data and tokenizer are looked at, which nobody does without a run.

    A task's files are reported by the task.
    """
    if not any(settings.value(path) or path in sources.failed for path in _NAMES_OF_DATA):
        yield "data.data_path"
    if settings.value("data.tokenizer_type") is None and settings.value("model.vocab_size") is None:
        yield "data.tokenizer_type"


def _build(settings: Settings) -> RunConfig:
    """The frozen run. Every value was checked where it was read."""
    blocks = {
        name: block(**{key: settings.value(f"{name}.{key}") for key in block.model_fields})
        for name, block in block_classes().items()
    }
    return RunConfig(**blocks, world_size=settings.world_size)
