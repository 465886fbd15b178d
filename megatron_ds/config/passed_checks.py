"""Checks the keys of a DeepSpeed JSON that are passed on as they are: kinds of values and dtypes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from megatron_ds.config.deepspeed_final import auto_fills
from megatron_ds.config.deepspeed_keys import PASSED
from megatron_ds.config.deepspeed_kinds import DTYPE
from megatron_ds.config.deepspeed_reader import AUTO, DeepSpeedFile
from megatron_ds.config.offload_checks import offload_problems
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
    yield from offload_problems(file, settings)
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
