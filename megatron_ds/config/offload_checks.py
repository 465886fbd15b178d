"""Checks what a DeepSpeed JSON says of offload: optimizer state and parameters in host memory or on disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megatron_ds.config.deepspeed_reader import DeepSpeedFile
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem, Source

_PP = "parallel.pipeline_model_parallel_size"
_ZERO = "parallel.zero_stage"


@dataclass(frozen=True)
class _Block:
    """One of the two blocks.

    Attributes:
        name: its key in `zero_optimization`.
        least_stage: the first ZeRO stage that shards what is moved, by device that can be used.
        for_disks: keys that mean something with the device nvme only, and DeepSpeed's defaults of them.
    """

    name: str
    least_stage: Mapping[str, int]
    for_disks: Mapping[str, Any]


_BLOCKS = (
    _Block(
        "offload_optimizer",
        {"cpu": 1},  # not nvme: see `_device_problem`
        {"nvme_path": None, "buffer_count": 4, "pipeline_read": False, "pipeline_write": False, "fast_init": False},
    ),
    _Block(
        "offload_param",
        {"cpu": 3, "nvme": 3},
        {"nvme_path": None, "buffer_count": 5, "buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000},
    ),
)


def offload_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """What offload needs: a ZeRO stage that shards what is moved, no pipeline, a folder on a disk.

    Whether that folder is there is looked at on each machine; see `megatron_ds.cli.offload`.

    Args:
        file: what the DeepSpeed JSON says.
        settings: the options, with the ZeRO stage in force.

    Yields:
        The problems.
    """
    zero = file.passed.get("zero_optimization", {})
    for block in _BLOCKS:
        yield from _block_problems(file, settings, block, zero.get(block.name, {}))
    devices = [zero.get(block.name, {}).get("device") for block in _BLOCKS]
    if "aio" in file.passed and "nvme" not in devices:
        yield Problem(
            f"{file.label}: aio is about offload to disks, and nothing is offloaded to them",
            advice='remove the block, or write "device": "nvme" in offload_param',
        )


def _block_problems(
    file: DeepSpeedFile, settings: Settings, block: _Block, content: Mapping[str, Any]
) -> Iterator[Problem]:
    device = content.get("device", "none")
    if not isinstance(device, str):
        return  # reported as a wrong kind of value
    prefix = f"{file.label}: zero_optimization.{block.name}"
    source = Source("device", device, f"{prefix}.device")
    if device not in ("none", *block.least_stage):
        yield _device_problem(block, source)
        return
    if device != "none":
        yield from _stage_problems(settings, block, source)
    if device == "nvme":
        yield from _disk_problems(block, content, source)
    else:
        yield from _needless_problems(block, content, source, prefix)


def _stage_problems(settings: Settings, block: _Block, source: Source) -> Iterator[Problem]:
    stage, least = settings.value(_ZERO), block.least_stage[source.value]
    what = f"{block.name} to nvme" if source.value == "nvme" else block.name
    if stage < least:
        yield Problem(
            f"{what} needs ZeRO stage {'3' if least == 3 else '1, 2 or 3'}, not {stage}",
            (source, settings.source(_ZERO)),
            f"use ZeRO stage {least}, or take {block.name} out",
        )
    if settings.value(_PP) > 1:
        yield Problem(
            f"{block.name} can't run with a pipeline of {settings.value(_PP)} stages",
            (source, settings.source(_PP)),
            f"use a pipeline size of 1, or take {block.name} out",
        )


def _device_problem(block: _Block, source: Source) -> Problem:
    if source.value == "nvme":
        return Problem(
            f"{block.name} to nvme isn't supported: with two replicas, DeepSpeed 0.19.8 updates matrices of which a "
            "rank holds more than 1 MiB with wrong gradients",
            (source,),
            'use "device": "cpu" for the optimizer; offload_param may go to nvme beside it',
        )
    return Problem(
        f"{block.name} to {source.value!r} isn't supported",
        (source,),
        f"the devices are {', '.join(('none', *block.least_stage))}",
    )


def _disk_problems(block: _Block, content: Mapping[str, Any], source: Source) -> Iterator[Problem]:
    if content.get("nvme_path") is None:
        yield Problem(
            f"{block.name} to nvme doesn't say where",
            (source,),
            f'write "nvme_path": "FOLDER" in {block.name}: a folder on a local disk of every machine',
        )


def _needless_problems(block: _Block, content: Mapping[str, Any], source: Source, prefix: str) -> Iterator[Problem]:
    """Keys that would have no effect; DeepSpeed's own defaults, which many JSONs carry along, are no wish."""
    for key, default in block.for_disks.items():
        value = content.get(key, default)
        if value != default:
            yield Problem(
                f"{prefix}.{key} has no effect with the device {source.value}: it is about offload to disks",
                (source, Source(key, str(value), f"{prefix}.{key}")),
                "remove the key" + (', or write "device": "nvme"' if "nvme" in block.least_stage else ""),
            )
