"""Checks the keys of a DeepSpeed JSON that are passed on as they are: kinds of values, dtypes, offload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from megatron_ds.config.deepspeed_final import auto_fills
from megatron_ds.config.deepspeed_keys import AUTO_IS_A_VALUE, COUNTS, SHARES, TEXTS, TYPED_BLOCKS
from megatron_ds.config.deepspeed_reader import AUTO, DeepSpeedFile
from megatron_ds.config.settings import Settings, wrong_value
from megatron_ds.errors import Problem, Source

_DTYPE_NAMES = ("bf16", "fp16", "fp32")


def passed_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """Problems of the keys that DeepSpeed gets as they are.

    Args:
        file: what the DeepSpeed JSON says.
        settings: the options, with the ZeRO stage in force.

    Yields:
        The problems.
    """
    fillable = auto_fills(settings.value("model.hidden_size") or 1)
    unfilled = [key for key in _autos(file.passed, "") if key not in fillable]
    if unfilled:
        yield Problem(
            f'{file.label}: nothing fills "auto" in {", ".join(unfilled)}',
            advice="write a number, or remove the key for DeepSpeed's default",
        )
    yield from _kind_problems(file.passed, file.label, "")
    yield from _dtype_problems(file, settings)
    yield from _offload_problems(file, settings)


def _autos(block: Mapping[str, Any], name: str) -> Iterator[str]:
    """The dotted keys below `block` whose value is "auto" without being DeepSpeed's own word."""
    for key, value in block.items():
        dotted = f"{name}.{key}".lstrip(".")
        if isinstance(value, Mapping):
            yield from _autos(value, dotted)
        elif value == AUTO and dotted not in AUTO_IS_A_VALUE:
            yield dotted


def _kind_problems(block: Mapping[str, Any], label: str, name: str) -> Iterator[Problem]:
    """Values that DeepSpeed's own models would refuse, long after the start."""
    for key, value in block.items():
        dotted = f"{name}.{key}".lstrip(".")
        wanted = _wanted(name, key)
        if isinstance(value, Mapping):
            yield from _kind_problems(value, label, dotted)
        elif value != AUTO and wanted is not None and not wanted[1](value):
            yield wrong_value(dotted, value, f"{label}: {dotted}", wanted[0])


def _wanted(block: str, key: str) -> tuple[str, Callable[[Any], bool]] | None:
    """What a key takes, in words and as a check; None when that isn't known here."""
    if block not in TYPED_BLOCKS or key in TEXTS:
        return None
    if key in SHARES:
        return "a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1
    if key.removeprefix("stage3_") in COUNTS:
        return "a whole number", lambda value: _is_number(value) and value >= 0 and float(value).is_integer()
    return "true or false", lambda value: isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _dtype_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    wanted = file.passed.get("data_types", {}).get("grad_accum_dtype")
    allowed = dict.fromkeys((settings.precision, "fp32"))
    if wanted is not None and wanted != AUTO and str(wanted) not in allowed:
        origin = f"{file.label}: data_types.grad_accum_dtype"
        yield Problem(
            f"gradients of a {settings.precision} run are summed in {' or '.join(allowed)}, not in {wanted}",
            (Source("grad_accum_dtype", str(wanted), origin), *_precision_source(settings)),
            "remove the key: fp32 is the default under bf16",
        )
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = file.passed.get(key)
        if value is not None and value != AUTO and str(value).lower() not in _DTYPE_NAMES:
            yield Problem(f"{file.label}: {key} is one of {', '.join(_DTYPE_NAMES)}, not {value!r}")


def _precision_source(settings: Settings) -> tuple[Source, ...]:
    return () if settings.precision == "fp32" else settings.sources(f"training.{settings.precision}")


def _offload_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """What offload needs: a ZeRO stage that shards what is moved, no pipeline, and memory instead of disks."""
    zero = file.passed.get("zero_optimization", {})
    for key, least_stage in (("offload_optimizer", 1), ("offload_param", 3)):
        block = zero.get(key, {})
        device = block.get("device", "none")
        origin = f"{file.label}: zero_optimization.{key}.device"
        if device not in ("none", "cpu"):
            advice = "offload to disks comes later" if device == "nvme" else "the devices are none and cpu"
            yield Problem(
                f"{key} to {device!r} isn't supported",
                (Source("device", str(device), origin),),
                f'use "device": "cpu"; {advice}',
            )
        elif device == "cpu":
            source = Source("device", "cpu", origin)
            yield from _offload_stage_problems(settings, key, least_stage, source)
            yield from _ratio_problems(settings, block, origin.replace("device", "ratio"))


def _offload_stage_problems(settings: Settings, key: str, least_stage: int, source: Source) -> Iterator[Problem]:
    stage, pp_path = settings.value("parallel.zero_stage"), "parallel.pipeline_model_parallel_size"
    if stage < least_stage:
        yield Problem(
            f"{key} needs ZeRO stage {'3' if least_stage == 3 else '1, 2 or 3'}, not {stage}",
            (source, settings.source("parallel.zero_stage")),
            f"use ZeRO stage {least_stage}, or take {key} out",
        )
    if settings.value(pp_path) > 1:
        yield Problem(
            f"{key} can't run with a pipeline of {settings.value(pp_path)} stages",
            (source, settings.source(pp_path)),
            f"use a pipeline size of 1, or take {key} out",
        )


def _ratio_problems(settings: Settings, block: Mapping[str, Any], origin: str) -> Iterator[Problem]:
    ratio, stage = block.get("ratio", 1.0), settings.value("parallel.zero_stage")
    if ratio != 1.0 and stage != 3:
        yield Problem(
            f"offloading a share of {ratio} needs ZeRO stage 3, not {stage}",
            (Source("ratio", str(ratio), origin), settings.source("parallel.zero_stage")),
            "use ZeRO stage 3, or a ratio of 1",
        )
