"""Checks the keys of a DeepSpeed JSON that are passed on as they are: kinds of values, dtypes, offload."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from megatron_ds.config.deepspeed_final import auto_fills
from megatron_ds.config.deepspeed_keys import PASSED
from megatron_ds.config.deepspeed_kinds import DTYPE, SHARE
from megatron_ds.config.deepspeed_reader import AUTO, DeepSpeedFile
from megatron_ds.config.settings import Settings, wrong_value
from megatron_ds.errors import Problem, Source


def passed_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """Problems of the keys that DeepSpeed gets as they are.

    Args:
        file: what the DeepSpeed JSON says.
        settings: the options, with the ZeRO stage in force.

    Yields:
        The problems.
    """
    fillable = auto_fills(settings.value("model.hidden_size") or 1)
    yield from _kind_problems(file.passed, file.label, "", fillable)
    yield from _dtype_problems(file, settings)
    yield from _offload_problems(file, settings)
    yield from _partition_problems(file, settings)


def _kind_problems(block: Mapping[str, Any], label: str, name: str, fillable: Container[str]) -> Iterator[Problem]:
    """Values that DeepSpeed would refuse or stumble over, long after the start, and "auto" that nothing fills."""
    for key, value in block.items():
        dotted = f"{name}.{key}".lstrip(".")
        if isinstance(value, Mapping) and dotted in PASSED:
            yield from _kind_problems(value, label, dotted, fillable)
            continue
        kind = PASSED[name][key]
        if kind.accepts(value) or (value == AUTO and dotted in fillable):
            continue
        if value == AUTO:
            advice = f"write {kind.wanted}, or remove the key for DeepSpeed's default"
            yield Problem(f'{label}: nothing fills "auto" in {dotted}', advice=advice)
        else:
            yield wrong_value(dotted, value, f"{label}: {dotted}", kind.wanted)


def _dtype_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    wanted = file.passed.get("data_types", {}).get("grad_accum_dtype")
    allowed = dict.fromkeys((settings.precision, "fp32"))
    if DTYPE.accepts(wanted) and wanted not in allowed:
        origin = f"{file.label}: data_types.grad_accum_dtype"
        yield Problem(
            f"gradients of a {settings.precision} run are summed in {' or '.join(allowed)}, not in {wanted}",
            (Source("grad_accum_dtype", str(wanted), origin), *_precision_source(settings)),
            "remove the key: fp32 is the default under bf16",
        )


def _precision_source(settings: Settings) -> tuple[Source, ...]:
    return () if settings.precision == "fp32" else settings.sources(f"training.{settings.precision}")


def _offload_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """What offload needs: a ZeRO stage that shards what is moved, no pipeline, and memory instead of disks."""
    zero = file.passed.get("zero_optimization", {})
    for key, least_stage in (("offload_optimizer", 1), ("offload_param", 3)):
        block = zero.get(key, {})
        device = block.get("device", "none")
        origin = f"{file.label}: zero_optimization.{key}.device"
        if isinstance(device, str) and device not in ("none", "cpu"):
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


def _partition_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """Sending shares of an activation between stages needs the same activation on all tensor-parallel ranks."""
    block = file.passed.get("pipeline", {})
    for key in ("pipe_partitioned", "grad_partitioned"):
        if block.get(key) is True and settings.value("parallel.sequence_parallel"):
            yield Problem(
                f"pipeline.{key} can't be with sequence_parallel, which cuts what goes from stage to stage already",
                (Source(key, "true", f"{file.label}: pipeline.{key}"), *settings.sources("parallel.sequence_parallel")),
                "remove the key",
            )


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
    if SHARE.accepts(ratio) and ratio != 1 and stage != 3:
        yield Problem(
            f"offloading a share of {ratio} needs ZeRO stage 3, not {stage}",
            (Source("ratio", str(ratio), origin), settings.source("parallel.zero_stage")),
            "use ZeRO stage 3, or a ratio of 1",
        )
