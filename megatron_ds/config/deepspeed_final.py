"""Makes the dict that DeepSpeed gets, and checks what is passed on to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.deepspeed_keys import AUTO_IS_A_VALUE
from megatron_ds.config.deepspeed_reader import AUTO, DeepSpeedFile
from megatron_ds.config.settings import Settings
from megatron_ds.errors import Problem, Source

# DeepSpeed's own step lines would stand between ours.
NEVER = 2**31 - 1

_DTYPE_NAMES = ("bf16", "fp16", "fp32")


def passed_problems(file: DeepSpeedFile, settings: Settings) -> Iterator[Problem]:
    """Problems of the keys that DeepSpeed gets as they are.

    Args:
        file: what the DeepSpeed JSON says.
        settings: the options, with the ZeRO stage in force.

    Yields:
        The problems.
    """
    fillable = _auto_fills(settings.value("model.hidden_size") or 1)
    unfilled = [key for key in _autos(file.passed, "") if key not in fillable]
    if unfilled:
        yield Problem(
            f'{file.label}: nothing fills "auto" in {", ".join(unfilled)}',
            advice="write a number, or remove the key for DeepSpeed's default",
        )
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


def _auto_fills(hidden_size: int) -> dict[str, int]:
    """Sizes for ZeRO buffers that follow from the model, as Hugging Face's integration fills them."""
    square = hidden_size * hidden_size
    sizes = {
        "reduce_bucket_size": square,
        "stage3_prefetch_bucket_size": 9 * square // 10,
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }
    return {f"zero_optimization.{key}": size for key, size in sizes.items()}


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


def deepspeed_config(run: RunConfig, passed: Mapping[str, Any]) -> dict[str, Any]:
    """The config for `deepspeed.initialize`: what is decided here, and what is passed on.

    There is no optimizer and no scheduler in it: the engine hands over torch's AdamW, and the loop sets learning
    rates.

    Args:
        run: the resolved run, with its number of processes.
        passed: the keys of the user's JSON that are passed on.

    Returns:
        A new dict that DeepSpeed 0.19.8 accepts, without any ``"auto"`` of ours.
    """
    result = _without_autos(passed, "", _auto_fills(run.model.hidden_size))
    training = run.training
    result |= {
        "train_batch_size": run.global_batch_size,
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": run.num_micro_batches,
        # Always written: DeepSpeed clips at 1.0 when the key is absent, and 0 turns clipping off.
        "gradient_clipping": run.optimizer.clip_grad,
        "bf16": {**result.get("bf16", {}), "enabled": training.bf16},
        "fp16": {**result.get("fp16", {}), **_fp16(run)},
        "zero_optimization": {**result.get("zero_optimization", {}), "stage": run.zero_stage},
    }
    if training.bf16:
        result["data_types"] = {"grad_accum_dtype": "fp32", **result.get("data_types", {})}
    result.setdefault("steps_per_print", NEVER)
    if run.zero_stage > 0:
        result.setdefault("zero_allow_untested_optimizer", True)
    return result


def _fp16(run: RunConfig) -> dict[str, Any]:
    training = run.training
    if not training.fp16:
        return {"enabled": False}
    return {
        "enabled": True,
        "loss_scale": training.loss_scale,
        "initial_scale_power": int(training.initial_loss_scale).bit_length() - 1,
        "loss_scale_window": training.loss_scale_window,
        "hysteresis": training.hysteresis,
        "min_loss_scale": int(training.min_loss_scale),
    }


def _without_autos(block: Mapping[str, Any], name: str, fills: Mapping[str, int]) -> dict[str, Any]:
    """A copy in which every "auto" that follows from the model is filled."""
    result: dict[str, Any] = {}
    for key, value in block.items():
        dotted = f"{name}.{key}".lstrip(".")
        if isinstance(value, Mapping):
            result[key] = _without_autos(value, dotted, fills)
        else:
            result[key] = fills[dotted] if value == AUTO and dotted in fills else value
    return result
