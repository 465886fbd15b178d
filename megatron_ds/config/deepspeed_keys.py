"""The keys of a DeepSpeed 0.19.8 JSON, as data: which are ours, which are passed on, which are refused and why.

Read off deepspeed/runtime/config.py, constants.py, precision_config.py, zero/config.py, zero/offload_config.py,
monitor/config.py, comm/config.py, profiling/constants.py, swap_tensor/constants.py and lr_schedules.py. DeepSpeed
itself accepts a misspelt key on the top level, and in several blocks, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from megatron_ds.config import deepspeed_kinds as kinds
from megatron_ds.config.deepspeed_kinds import Kind


def _either_name(keys: Mapping[str, Kind]) -> dict[str, Kind]:
    """The keys under both of their names: DeepSpeed takes them with and without ``stage3_`` before."""
    return {name: kind for key, kind in keys.items() for name in (key, f"stage3_{key}")}


# Keys that become options of ours, or must agree with them. The option's path tells where a value goes.
OURS: Mapping[str, str] = {
    "train_batch_size": "training.global_batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "gradient_accumulation_steps": "global batch size / (micro-batch size x data-parallel size)",
    "gradient_clipping": "optimizer.clip_grad",
    "bf16.enabled": "training.bf16",
    "fp16.enabled": "training.fp16",
    "fp16.loss_scale": "training.loss_scale",
    "fp16.initial_scale_power": "training.initial_loss_scale",
    "fp16.loss_scale_window": "training.loss_scale_window",
    "fp16.hysteresis": "training.hysteresis",
    "fp16.min_loss_scale": "training.min_loss_scale",
    "zero_optimization.stage": "parallel.zero_stage",
    "activation_checkpointing.partition_activations": "training.distribute_saved_activations",
    "activation_checkpointing.cpu_checkpointing": "training.checkpoint_in_cpu",
    "optimizer.type": "`Adam` or `AdamW`; both mean AdamW here, as in DeepSpeed",
    "optimizer.params.lr": "optimizer.lr",
    "optimizer.params.betas": "optimizer.adam_beta1, optimizer.adam_beta2",
    "optimizer.params.eps": "optimizer.adam_eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "optimizer.params.torch_adam": "no meaning here: torch's AdamW always runs, except under CPU offload",
    "scheduler.type": "optimizer.lr_decay_style",
    "scheduler.params.warmup_max_lr": "optimizer.lr",
    "scheduler.params.warmup_num_steps": "optimizer.lr_warmup_iters",
    "scheduler.params.total_num_steps": "optimizer.lr_decay_iters",
    "scheduler.params.cos_min_ratio": "optimizer.min_lr / optimizer.lr",
    "scheduler.params.warmup_type": "`linear`; not given, warm-up is linear here",
    "scheduler.params.last_batch_iteration": "`-1`; a resumed run takes its place from the checkpoint",
}

# Keys that DeepSpeed gets as they are, by block, with what each of them takes; "" is the top level. DeepSpeed checks
# some of them with a traceback long after the start, and others never.
PASSED: Mapping[str, Mapping[str, Kind]] = {
    "": {
        "steps_per_print": kinds.POSITIVE,
        "wall_clock_breakdown": kinds.SWITCH,
        "memory_breakdown": kinds.SWITCH,
        "dump_state": kinds.SWITCH,
        "disable_python_gc": kinds.SWITCH,
        "log_level": kinds.LOG_LEVEL,
        "vocabulary_size": kinds.POSITIVE,
        "communication_data_type": kinds.DTYPE_ANY_CASE,
        "seq_parallel_communication_data_type": kinds.DTYPE_ANY_CASE,
        "zero_allow_untested_optimizer": kinds.SWITCH,
        "zero_force_ds_cpu_optimizer": kinds.SWITCH,
    },
    "zero_optimization": {
        "contiguous_gradients": kinds.SWITCH,
        "reduce_scatter": kinds.SWITCH,
        "reduce_bucket_size": kinds.POSITIVE,
        "use_multi_rank_bucket_allreduce": kinds.SWITCH,
        "allgather_partitions": kinds.SWITCH,
        "allgather_bucket_size": kinds.COUNT,
        "overlap_comm": kinds.SWITCH,
        "load_from_fp32_weights": kinds.SWITCH,
        "sub_group_size": kinds.COUNT,
        **_either_name(
            {
                "prefetch_bucket_size": kinds.COUNT,
                "param_persistence_threshold": kinds.COUNT,
                "model_persistence_threshold": kinds.COUNT,
                "max_live_parameters": kinds.COUNT,
                "max_reuse_distance": kinds.COUNT,
                "gather_16bit_weights_on_model_save": kinds.SWITCH,
                "module_granularity_threshold": kinds.COUNT,
                "use_all_reduce_for_fetch_params": kinds.SWITCH,
                "allgather_sequential": kinds.SWITCH,
            }
        ),
        "ignore_unused_parameters": kinds.SWITCH,
        "round_robin_gradients": kinds.SWITCH,
        "parameter_alignment": kinds.SWITCH,
        "memory_efficient_linear": kinds.SWITCH,
        "pipeline_loading_checkpoint": kinds.SWITCH,
        "override_module_apply": kinds.SWITCH,
        "log_trace_cache_warnings": kinds.SWITCH,
        "enable_sanity_checks": kinds.SWITCH,
    },
    "zero_optimization.offload_optimizer": {
        "device": kinds.DEVICE,
        "nvme_path": kinds.TEXT,
        "buffer_count": kinds.COUNT,
        "pin_memory": kinds.SWITCH,
        "pipeline_read": kinds.SWITCH,
        "pipeline_write": kinds.SWITCH,
        "fast_init": kinds.SWITCH,
    },
    "zero_optimization.offload_param": {
        "device": kinds.DEVICE,
        "nvme_path": kinds.TEXT,
        "buffer_count": kinds.COUNT,
        "buffer_size": kinds.COUNT,
        "max_in_cpu": kinds.COUNT,
        "pin_memory": kinds.SWITCH,
    },
    "zero_optimization.leaf_module": {
        "classes": kinds.NAME_OR_NAMES,
        "names": kinds.NAME_OR_NAMES,
        "name_suffixes": kinds.NAME_OR_NAMES,
    },
    "bf16": {"immediate_grad_update": kinds.SWITCH, "check_grad_overflow": kinds.SWITCH},
    "fp16": {"consecutive_hysteresis": kinds.SWITCH},
    "optimizer": {},
    "optimizer.params": {},
    "scheduler": {},
    "scheduler.params": {},
    "activation_checkpointing": {},
    "pipeline": {"pipe_partitioned": kinds.SWITCH, "grad_partitioned": kinds.SWITCH},
    "data_types": {
        "grad_accum_dtype": kinds.DTYPE,
        "buffer_dtype": kinds.DTYPE,
        "keep_in_fp32_modules": kinds.AUTO_OR_NAMES,
    },
    "checkpoint": {"tag_validation": kinds.TAG_VALIDATION},
    "checkpoint.parallel_write": {"pipeline_stage": kinds.SWITCH},
    "comms_logger": {
        "enabled": kinds.SWITCH,
        "verbose": kinds.SWITCH,
        "prof_all": kinds.SWITCH,
        "debug": kinds.SWITCH,
        "prof_ops": kinds.NAMES,
    },
    "flops_profiler": {
        "enabled": kinds.SWITCH,
        "recompute_fwd_factor": kinds.FACTOR,
        "profile_step": kinds.POSITIVE,
        "module_depth": kinds.LEVELS,
        "top_modules": kinds.POSITIVE,
        "detailed": kinds.SWITCH,
        "output_file": kinds.TEXT,
    },
    "tensorboard": {"enabled": kinds.SWITCH, "output_path": kinds.TEXT, "job_name": kinds.TEXT},
    "csv_monitor": {"enabled": kinds.SWITCH, "output_path": kinds.TEXT, "job_name": kinds.TEXT},
    "wandb": {"enabled": kinds.SWITCH, "group": kinds.TEXT, "team": kinds.TEXT, "project": kinds.TEXT},
    "comet": {
        "enabled": kinds.SWITCH,
        "samples_log_interval": kinds.POSITIVE,
        "project": kinds.TEXT,
        "workspace": kinds.TEXT,
        "api_key": kinds.TEXT,
        "experiment_name": kinds.TEXT,
        "experiment_key": kinds.TEXT,
        "online": kinds.SWITCH,
        "mode": kinds.COMET_MODE,
    },
    "timers": {},
    "timers.throughput": {"enabled": kinds.SWITCH, "synchronized": kinds.SWITCH},
    "aio": {
        "block_size": kinds.POSITIVE,
        "queue_depth": kinds.POSITIVE,
        "intra_op_parallelism": kinds.POSITIVE,
        "single_submit": kinds.SWITCH,
        "overlap_events": kinds.SWITCH,
    },
}


@dataclass(frozen=True)
class Refusal:
    """Why a key is refused.

    Attributes:
        reason: what it would do, or that DeepSpeed has removed it.
        instead: what to do, in the imperative.
        harmless: values that change nothing and are accepted. A block with ``"enabled": false`` is harmless too.
        removed: True when DeepSpeed 0.19.8 itself stops at the mere presence of the key, whatever its value. Refused
            keys never reach it, so an old JSON that has such a key turned off still runs.
    """

    reason: str
    instead: str
    harmless: tuple[Any, ...] = (False, None)
    removed: bool = False

    def accepts(self, value: Any) -> bool:
        """True when `value` changes nothing."""
        if isinstance(value, dict):
            return not value or value.get("enabled") is False
        # `1 == True` in Python, so types are compared too.
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.harmless)


def _removed(what: str, instead: str = "remove the key") -> Refusal:
    return Refusal(f"DeepSpeed 0.19.8 has removed {what}", instead, removed=True)


_RECOMPUTE = "take it out and use --recompute-granularity full, which recomputes transformer layers"
_LATER = "take it out; megatron_ds doesn't support it yet"

REFUSED: Mapping[str, Refusal] = {
    # Removed from DeepSpeed.
    "amp": _removed("Apex mixed precision", "remove the key and use --bf16 or --fp16"),
    "nebula": _removed("Nebula checkpoints"),
    "compression_training": _removed("its compression library"),
    "quantize_training": _removed("mixture of quantization"),
    "eigenvalue": _removed("mixture of quantization"),
    "sparse_gradients": _removed("sparse reduction of dense embedding gradients"),
    "sparse_attention": _removed("sparse attention"),
    "elasticity": _removed(
        "elastic training", "remove the key; --global-batch-size and --micro-batch-size fit any data-parallel size"
    ),
    "graph_harvesting": _removed("graph harvesting"),
    "curriculum_learning": _removed("the top-level curriculum; its successor in data_efficiency isn't supported here"),
    "progressive_layer_drop": _removed("progressive layer drop"),
    "zero_optimization.mics_shard_size": _removed("MiCS", "remove the key; plain ZeRO-3 shards over all replicas"),
    "zero_optimization.mics_hierarchical_params_gather": _removed("MiCS"),
    "zero_optimization.zeropp_loco_param": _removed("LoCo"),
    # Deprecated spellings.
    "bfloat16": Refusal("the block's name is bf16", 'write "bf16"', ()),
    "zero_optimization.cpu_offload": Refusal(
        "the key is deprecated", 'write "offload_optimizer": {"device": "cpu"}', (False, None)
    ),
    "zero_optimization.cpu_offload_param": Refusal(
        "the key is deprecated", 'write "offload_param": {"device": "cpu"}', (False, None)
    ),
    "zero_optimization.cpu_offload_use_pin_memory": Refusal(
        "the key is deprecated", 'write "pin_memory" inside offload_optimizer or offload_param', (False, None)
    ),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": Refusal(
        "the key is deprecated", 'write "stage3_gather_16bit_weights_on_model_save"', (False, None)
    ),
    "zero_optimization.elastic_checkpoint": Refusal("the key is a leftover of removed code", "remove the key"),
    "zero_optimization.legacy_stage1": Refusal("the old stage 1 is deprecated in DeepSpeed", "remove the key"),
    # What would make numbers wrong, or different from what our options say.
    "zero_optimization.zero_quantized_weights": Refusal("quantized weights change the numbers", "remove the key"),
    "zero_optimization.zero_quantized_nontrainable_weights": Refusal(
        "quantized weights change the numbers", "remove the key"
    ),
    "zero_optimization.zero_quantized_gradients": Refusal("quantized gradients change the numbers", "remove the key"),
    "zero_optimization.zero_hpz_partition_size": Refusal(
        "its groups take neighbouring ranks, which belong to different tensor-parallel shards", "remove the key", (0, 1)
    ),
    "zero_optimization.compute_grad_norm": Refusal("each step reports the gradient norm", "remove the key", (True,)),
    "zero_optimization.zenflow": Refusal("ZenFlow trains with stale gradients", _LATER, (None,)),
    "zero_optimization.save_muon_momentum_buffer_in_memory": Refusal("the optimizer here is AdamW", "remove the key"),
    "zero_optimization.offload_optimizer.super_offload": Refusal("SuperOffload isn't tested here", _LATER),
    "zero_optimization.offload_optimizer.ratio": Refusal(
        "DeepSpeed leaves the share that stays on the GPU at the first learning rate, and doesn't save its moments",
        "remove the key",
        (1, 1.0, None),
    ),
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": Refusal(
        "DeepSpeed reads it for SuperOffload only", "remove the key", (0.8, None)
    ),
    "bf16.bf16_master_weights_and_grads": Refusal("masters and gradient sums are fp32 here", "remove the key"),
    "bf16.bf16_optimizer_states": Refusal("optimizer states are fp32 here", "remove the key"),
    "fp16.auto_cast": Refusal("the model's own layers decide the dtype of their inputs", "remove the key"),
    "fp16.fp16_master_weights_and_grads": Refusal("masters and gradient sums are fp32 here", "remove the key"),
    "data_types.param_dtype": Refusal("--bf16 and --fp16 decide the dtype of parameters", "remove the key", (None,)),
    "torch_autocast": Refusal("it fights with --bf16 and --fp16", "take it out and use --bf16 or --fp16", (None,)),
    "prescale_gradients": Refusal("the loss is already divided by the global count of tokens", "remove the key"),
    "gradient_predivide_factor": Refusal(
        "the loss is already divided by the global count of tokens", "remove the key", (1, 1.0, None)
    ),
    "gradient_allreduce_op": Refusal("gradients are the mean over replicas here", "remove the key", ("mean", None)),
    "managed_gradient_accumulation": Refusal(
        "micro-batches are counted by DeepSpeed's engine here", "remove the key", (True,)
    ),
    "disable_allgather": Refusal("DeepSpeed 0.19.8 reads it and does nothing with it", "remove the key"),
    "optimizer.legacy_fusion": Refusal("the optimizer here is torch's AdamW", "remove the key"),
    "optimizer.params.adam_w_mode": Refusal("weight decay is decoupled (AdamW) here", "remove the key", (True,)),
    "optimizer.params.bias_correction": Refusal("AdamW corrects its bias", "remove the key", (True,)),
    "optimizer.params.amsgrad": Refusal("AMSGrad isn't supported", "remove the key"),
    "optimizer.params.set_grad_none": Refusal("gradients are always released here", "remove the key", (True, False)),
    "optimizer.params.max_grad_norm": Refusal(
        "DeepSpeed ignores it", "write gradient_clipping on the top level, or give --clip-grad", (0, None)
    ),
    "scheduler.params.warmup_min_lr": Refusal("warm-up starts at 0 here", "remove the key", (0, "auto")),
    "scheduler.params.warmup_min_ratio": Refusal("warm-up starts at 0 here", "remove the key", (0, "auto")),
    # What our own code does, or will do.
    "activation_checkpointing.number_checkpoints": Refusal(
        "DeepSpeed reads it for contiguous_memory_optimization only",
        "take it out; --recompute-num-layers says how many layers share one saved input",
        (None,),
    ),
    "activation_checkpointing.contiguous_memory_optimization": Refusal(
        "saved inputs aren't copied into one buffer here", "remove the key"
    ),
    "activation_checkpointing.synchronize_checkpoint_boundary": Refusal(
        "recomputation needs no synchronization here", "remove the key"
    ),
    "activation_checkpointing.profile": Refusal("recomputation isn't timed here", "remove the key"),
    "pipeline.activation_checkpoint_interval": Refusal(
        "recomputation isn't done by this key",
        "take it out and use --recompute-granularity full with --recompute-num-layers in place of the interval",
        (0, None),
    ),
    "pipeline.use_reentrant": Refusal(
        "reentrant recomputation loses gradients of layers whose inputs need none", _RECOMPUTE
    ),
    "pipeline.stages": Refusal(
        "the number of stages is an option", "remove the key and use --pipeline-model-parallel-size", ("auto", None)
    ),
    "pipeline.partition": Refusal(
        "how layers are dealt is an option", "remove the key and use --pp-partition-method", ("best", None)
    ),
    "pipeline.seed_layers": Refusal("initial weights are drawn by parameter name", "remove the key"),
    "tensor_parallel": Refusal(
        "DeepSpeed's automatic tensor parallelism computes another gradient norm",
        "take it out and use --tensor-model-parallel-size",
        (None,),
    ),
    "sequence_parallel_size": Refusal("DeepSpeed's sequence parallelism isn't supported yet", "remove it", (1, None)),
    "dataloader_drop_last": Refusal("samples come from our own loader", "remove the key"),
    "data_efficiency": Refusal("samples come from our own loader", _LATER, (None,)),
    "compile": Refusal("the engine decides what is compiled", _LATER, (None,)),
    "autotuning": Refusal("it starts runs of its own", _LATER, (None,)),
    "hybrid_engine": Refusal("it is for reinforcement learning", _LATER, (None,)),
    "expert_parallel": Refusal("there are no experts in the model", _LATER, (None,)),
    "use_data_before_expert_parallelism": Refusal("there are no experts in the model", "remove the key"),
    "weight_quantization": Refusal("it is for inference", "take it out", (None,)),
    "aio.use_gds": Refusal("GPUDirect storage isn't tested here", "remove the key"),
    "datastates_ckpt": Refusal("this writer isn't tested here", _LATER),
    "checkpoint.checkpoint_serialization": Refusal(
        "files are always zip archives, whose tensors can be mapped into memory", "remove the key", (True, None)
    ),
    "checkpoint.load_universal": Refusal("universal checkpoints come later", "remove the key"),
    "checkpoint.use_node_local_storage": Refusal("a checkpoint is one shared folder here", "remove the key"),
    "checkpoint.writer": Refusal("other checkpoint writers aren't tested here", _LATER, (None,)),
}

# The optimizer and scheduler types that mean something here.
OPTIMIZER_TYPES = ("Adam", "AdamW")
SCHEDULER_STYLES: Mapping[str, str] = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
SCHEDULER_PARAMS: Mapping[str, tuple[str, ...]] = {
    "WarmupLR": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"),
    "WarmupDecayLR": (
        "total_num_steps",
        "warmup_min_lr",
        "warmup_max_lr",
        "warmup_num_steps",
        "warmup_type",
        "last_batch_iteration",
    ),
    "WarmupCosineLR": (
        "total_num_steps",
        "warmup_min_ratio",
        "warmup_num_steps",
        "cos_min_ratio",
        "warmup_type",
        "last_batch_iteration",
    ),
}


@cache
def known_keys(block: str) -> tuple[str, ...]:
    """The keys inside a block, without the block's name.

    Args:
        block: dotted name, ``""`` for the top level.

    Returns:
        The keys that are ours, passed on, or refused, and the names of inner blocks.
    """
    prefix = f"{block}." if block else ""
    dotted = [
        *OURS,
        *REFUSED,
        *PASSED,
        *(f"{outer}.{key}".lstrip(".") for outer, keys in PASSED.items() for key in keys),
    ]
    inside = [name.removeprefix(prefix).split(".")[0] for name in dotted if name.startswith(prefix)]
    return tuple(dict.fromkeys(key for key in inside if key))
