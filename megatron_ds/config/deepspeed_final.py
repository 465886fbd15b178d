"""Makes the dict that DeepSpeed gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.deepspeed_reader import AUTO

# DeepSpeed's own step lines would stand between ours.
NEVER = 2**31 - 1


def auto_fills(hidden_size: int) -> dict[str, int]:
    """Sizes of ZeRO's buffers that follow from the model, as Hugging Face's integration fills them.

    Args:
        hidden_size: width of the residual stream.

    Returns:
        Numbers of elements by dotted key.
    """
    square = hidden_size * hidden_size
    sizes = {
        "reduce_bucket_size": square,
        "stage3_prefetch_bucket_size": 9 * square // 10,
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }
    return {f"zero_optimization.{key}": size for key, size in sizes.items()}


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
    result = _without_autos(passed, "", auto_fills(run.model.hidden_size))
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
    if run.parallel.sequence_parallel:
        # DeepSpeed sends a share of each activation from every tensor-parallel rank, as if they all had the same one.
        result["pipeline"] = {**result.get("pipeline", {}), "pipe_partitioned": False, "grad_partitioned": False}
    if training.precision != "fp32":
        # In the layers' own dtype, small gradients would vanish beside the sum of the micro-batches before them.
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
