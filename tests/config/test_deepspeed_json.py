from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_ds.config import collect, resolve
from megatron_ds.config.deepspeed_keys import OURS, PASSED, REFUSED
from tests.config.helpers import environ, only_problem, problems, resolved, words, write_json


def with_json(tmp_path, content: dict[str, Any], *extra: str, **changes: str | None) -> list[str]:
    return words("--deepspeed_config", write_json(tmp_path / "ds.json", content), *extra, **changes)


@pytest.mark.parametrize(
    ("content", "changes", "path", "value"),
    [
        ({"train_micro_batch_size_per_gpu": 2}, {"micro_batch_size": None}, "training.micro_batch_size", 2),
        ({"train_batch_size": 4}, {}, "training.global_batch_size", 4),
        ({"gradient_clipping": 0.1}, {}, "optimizer.clip_grad", 0.1),
        ({"bf16": {"enabled": True}}, {}, "training.bf16", True),
        ({"zero_optimization": {"stage": 3}}, {}, "parallel.zero_stage", 3),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}, {"lr": None}, "optimizer.lr", 0.5),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.8, 0.7]}}}, {}, "optimizer.adam_beta2", 0.7),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.8, 0.7]}}}, {}, "optimizer.adam_beta1", 0.8),
        ({"optimizer": {"params": {"eps": 1e-6, "torch_adam": True}}}, {}, "optimizer.adam_eps", 1e-6),
        ({"optimizer": {"params": {"weight_decay": 0}}}, {}, "optimizer.weight_decay", 0.0),
        ({"fp16": {"enabled": False, "initial_scale_power": 10}}, {}, "training.initial_loss_scale", 1024.0),
        (
            {"activation_checkpointing": {"partition_activations": False}},
            {},
            "training.distribute_saved_activations",
            False,
        ),
        ({"fp16": {"loss_scale_window": 7, "hysteresis": 3}}, {}, "training.hysteresis", 3),
        ({"scheduler": {"type": "WarmupLR"}}, {}, "optimizer.lr_decay_style", "constant"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}}},
            {"lr": None},
            "optimizer.lr",
            0.5,
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5}}},
            {},
            "optimizer.lr_decay_iters",
            5,
        ),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1, "warmup_num_steps": 2}}},
            {},
            "optimizer.min_lr",
            1e-4,
        ),
    ],
)
def test_deepspeed_key_fills_its_option(tmp_path, content, changes, path, value):
    result = resolved(with_json(tmp_path, content, **changes))
    block, name = path.split(".")
    assert getattr(getattr(result.run, block), name) == pytest.approx(value)
    assert "ds.json: " in result.origins[path]
    assert "optimizer" not in result.deepspeed and "scheduler" not in result.deepspeed


@pytest.mark.parametrize(
    ("content", "flag", "key"),
    [
        ({"train_batch_size": 4}, ["--global-batch-size", "2"], "train_batch_size"),
        ({"gradient_clipping": 1.0}, ["--clip-grad", "0"], "gradient_clipping"),
        ({"bf16": {"enabled": False}}, ["--bf16"], "bf16.enabled"),
        ({"zero_optimization": {"stage": 2}}, ["--zero-stage", "1"], "zero_optimization.stage"),
        ({"optimizer": {"params": {"lr": 0.5}}}, ["--lr", "0.6"], "optimizer.params.lr"),
        ({"optimizer": {"params": {"betas": [0.9, 0.95]}}}, ["--adam-beta2", "0.99"], "optimizer.params.betas"),
        ({"scheduler": {"type": "WarmupLR"}}, ["--lr-decay-style", "cosine"], "scheduler.type"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, ["--min-lr", "1e-5"], "WarmupDecayLR ends at 0"),
    ],
)
def test_deepspeed_key_and_flag_that_differ_name_both_places(tmp_path, content, flag, key):
    text = only_problem(with_json(tmp_path, content, *flag))
    assert "is given twice" in text
    assert f"from {flag[0]}" in text
    assert "ds.json: " in text and key in text


def test_activation_checkpointing_block_says_how_recomputation_keeps_its_inputs(tmp_path):
    content = {"activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True}}
    result = resolved(with_json(tmp_path, content, "--checkpoint-activations"))
    training = result.run.training
    assert (training.recompute, training.distribute_saved_activations, training.checkpoint_in_cpu) == (
        "full",
        True,
        True,
    )
    assert "activation_checkpointing" not in result.deepspeed


def test_deepspeed_key_and_block_that_differ_are_a_contradiction(tmp_path):
    content = {"gradient_clipping": 1.0, "megatron_ds": {"optimizer": {"clip_grad": 2.0}}}
    text = only_problem(with_json(tmp_path, content))
    assert "megatron_ds.optimizer.clip_grad" in text and "ds.json: gradient_clipping" in text


def test_deepspeed_key_and_flag_that_agree_are_fine(tmp_path):
    argv = with_json(tmp_path, {"gradient_clipping": 0.5, "bf16": {"enabled": True}}, "--clip-grad", "0.5", "--bf16")
    assert resolved(argv).run.optimizer.clip_grad == 0.5


@pytest.mark.parametrize("flag", [None, "0", "0.1", "1"])
@pytest.mark.parametrize("key", [None, 0, 0.1, "auto"])
def test_gradient_clipping_has_one_value_that_deepspeed_gets(tmp_path, flag, key):
    content = {} if key is None else {"gradient_clipping": key}
    argv = with_json(tmp_path, content, *([] if flag is None else ["--clip-grad", flag]))
    if flag is not None and key not in (None, "auto") and float(flag) != key:
        assert "clip_grad is given twice" in only_problem(argv)
        return
    expected = float(flag) if flag is not None else key if isinstance(key, (int, float)) else 1.0
    result = resolved(argv)
    assert result.run.optimizer.clip_grad == result.deepspeed["gradient_clipping"] == expected


# Two pipeline stages and two tensor-parallel ranks on 8 processes: 2 replicas.
LAYOUT = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"]


@pytest.mark.parametrize(
    ("content", "micro", "expected"),
    [
        (
            {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
            None,
            (16, 2, 4),
        ),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}, None, (16, 2, 4)),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 4}, None, (16, 2, 4)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, None, (16, 2, 4)),
        ({"train_batch_size": 16, "gradient_accumulation_steps": "auto"}, "2", (16, 2, 4)),
        ({"gradient_accumulation_steps": 3}, "2", (12, 2, 3)),
        ({"train_micro_batch_size_per_gpu": 2}, None, (4, 2, 1)),
    ],
)
def test_batch_sizes_any_two_give_the_third_by_replicas(tmp_path, content, micro, expected):
    result = resolved(with_json(tmp_path, content, *LAYOUT, micro_batch_size=micro), 8)
    assert result.run.dp_size == 2
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(result.deepspeed[key] for key in keys) == expected
    assert (
        result.run.global_batch_size,
        result.run.training.micro_batch_size,
        result.run.num_micro_batches,
    ) == expected


def test_gradient_accumulation_written_as_a_float_is_a_whole_number(tmp_path):
    final = resolved(with_json(tmp_path, {"gradient_accumulation_steps": 2.0})).deepspeed
    assert (final["gradient_accumulation_steps"], final["train_batch_size"]) == (2, 2)


def test_batch_sizes_counted_by_processes_show_product_and_sources(tmp_path):
    content = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    text = only_problem(with_json(tmp_path, content, *LAYOUT, micro_batch_size=None), 8)
    assert "micro 2 × gas 4 × dp 2 = 16, expected 64" in text
    assert "ds.json: train_batch_size" in text and "ds.json: gradient_accumulation_steps" in text
    assert "8 processes / (TP 2 x PP 2)" in text
    assert "use global batch size 16 or gradient_accumulation_steps 16" in text


def test_batch_sizes_that_leave_no_micro_batch_are_refused(tmp_path):
    content = {"train_batch_size": 15, "gradient_accumulation_steps": 4}
    text = only_problem(with_json(tmp_path, content, micro_batch_size=None))
    assert "no micro-batch size fits" in text and "15" in text


HUGGING_FACE_ZERO_1 = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
    },
    "zero_optimization": {"stage": 1, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


def test_auto_in_the_usual_zero_1_json_is_filled_everywhere_and_told(tmp_path):
    result = resolved(
        with_json(tmp_path, HUGGING_FACE_ZERO_1, "--bf16", "--global-batch-size", "4", "--clip-grad", "2")
    )
    assert "auto" not in json.dumps(result.deepspeed)
    assert result.deepspeed["train_batch_size"] == result.deepspeed["gradient_accumulation_steps"] == 4
    assert result.deepspeed["zero_optimization"]["reduce_bucket_size"] == 32 * 32
    assert result.deepspeed["steps_per_print"] == 2000
    notes = "\n".join(result.notes)
    assert '"auto" gradient_clipping = 2.0 (from --clip-grad)' in notes
    assert '"auto" gradient_accumulation_steps = 4' in notes
    assert '"auto" optimizer.params.lr = 0.001 (from --lr)' in notes
    assert "warm-up is linear here" in notes


def test_auto_that_nothing_fills_is_listed(tmp_path):
    content = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"sub_group_size": "auto"}}
    texts = [str(problem) for problem in problems(with_json(tmp_path, content, micro_batch_size=None))]
    assert any('train_micro_batch_size_per_gpu is "auto", and no flag or block fills it' in text for text in texts)
    assert any('nothing fills "auto" in zero_optimization.sub_group_size' in text for text in texts)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"gradient_cliping": 1}, ["unknown key gradient_cliping", "gradient_clipping"]),
        ({"zero_optimisation": {}}, ["zero_optimisation", "zero_optimization"]),
        ({"stage": 1}, ["unknown key stage", "its place is zero_optimization.stage"]),
        ({"megatron_ds": {"model": {"swiglu": True}}}, ["unknown key", 'in a JSON it is "activation": "swiglu"']),
        ({"num_layers": 1}, ["its place is megatron_ds.model.num_layers"]),
        ({"megatrn_ds": {}}, ["did you mean megatron_ds?"]),
        ({"zero_optimization": {"overlap_com": True}}, ["zero_optimization.overlap_com", "overlap_comm"]),
        ({"zero_optimization": {"offload_optimizer": {"pin_memry": True}}}, ["pin_memry", "pin_memory"]),
        ({"bf16": {"enable": True}}, ["bf16.enable", "enabled"]),
        ({"fp16": {"loss_scale_windw": 1}}, ["loss_scale_window"]),
        ({"optimizer": {"params": {"weigth_decay": 1}}}, ["optimizer.params.weigth_decay", "weight_decay"]),
        ({"activation_checkpointing": {"partition_activation": True}}, ["partition_activations"]),
        ({"pipeline": {"pipe_partitoned": True}}, ["pipe_partitioned"]),
        ({"data_types": {"grad_acum_dtype": "fp32"}}, ["grad_accum_dtype"]),
        ({"comms_logger": {"verbos": True}}, ["verbose"]),
        ({"flops_profiler": {"profile_stp": 1}}, ["profile_step"]),
        ({"tensorboard": {"job_nam": "x"}}, ["job_name"]),
        ({"wandb": {"projct": "x"}}, ["project"]),
        ({"csv_monitor": {"output_pth": "x"}}, ["output_path"]),
        ({"aio": {"block_siz": 1}}, ["block_size"]),
        ({"checkpoint": {"tag_validaton": "Fail"}}, ["tag_validation"]),
        ({"timers": {"throughput": {"enabld": True}}}, ["enabled"]),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 1}}}, ["warmup_num_steps"]),
        ({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 5}}}, ["no parameter of WarmupLR"]),
        ({"zero_optimization": True}, ["zero_optimization is an object"]),
    ],
)
def test_deepspeed_key_unknown_at_any_level_is_refused_with_the_nearest(tmp_path, content, parts):
    text = only_problem(with_json(tmp_path, content))
    for part in parts:
        assert part in text


REMOVED = [
    "amp",
    "compression_training",
    "elasticity",
    "progressive_layer_drop",
    "nebula",
    "quantize_training",
    "sparse_gradients",
    "sparse_attention",
    "eigenvalue",
    "graph_harvesting",
    "curriculum_learning",
]


@pytest.mark.parametrize("key", REMOVED)
@pytest.mark.parametrize("value", [{"enabled": False}, {}, False])
def test_deepspeed_key_that_was_removed_is_taken_out_where_it_is_turned_off(tmp_path, key, value):
    assert key not in resolved(with_json(tmp_path, {key: value})).deepspeed


@pytest.mark.parametrize("key", REMOVED)
@pytest.mark.parametrize("value", [{"enabled": True}, {"x": 1}, True])
def test_deepspeed_key_that_was_removed_is_refused_where_it_is_turned_on(tmp_path, key, value):
    text = only_problem(with_json(tmp_path, {key: value}))
    assert f"{key} is refused: DeepSpeed 0.19.8 has removed" in text and "remove the key" in text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"activation_checkpointing": {"partition_activations": True}}, "add --recompute-granularity full"),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, "add --recompute-granularity full"),
        ({"activation_checkpointing": {"number_checkpoints": 4}}, "--recompute-num-layers says how many"),
        ({"activation_checkpointing": {"contiguous_memory_optimization": True}}, "remove the key"),
        ({"activation_checkpointing": {"synchronize_checkpoint_boundary": True}}, "remove the key"),
        ({"activation_checkpointing": {"profile": True}}, "remove the key"),
        ({"pipeline": {"activation_checkpoint_interval": 1}}, "--recompute-num-layers in place of the interval"),
        ({"pipeline": {"use_reentrant": True}}, "--recompute-granularity full"),
        ({"pipeline": {"stages": 2}}, "--pipeline-model-parallel-size"),
        ({"tensor_parallel": {"autotp_size": 2}}, "--tensor-model-parallel-size"),
        ({"compile": {"deepcompile": True}}, "compile is refused"),
        ({"torch_autocast": {"enabled": True}}, "--bf16"),
        ({"prescale_gradients": True}, "remove the key"),
        ({"gradient_predivide_factor": 2.0}, "remove the key"),
        ({"gradient_allreduce_op": "sum"}, "mean"),
        ({"checkpoint": {"load_universal": True}}, "later"),
        ({"checkpoint": {"writer": {"type": "FAST"}}}, "checkpoint.writer is refused"),
        ({"checkpoint": {"checkpoint_serialization": False}}, "checkpoint.checkpoint_serialization is refused"),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, "change the numbers"),
        ({"zero_optimization": {"cpu_offload": True}}, "offload_optimizer"),
        ({"zero_optimization": {"mics_shard_size": 2}}, "has removed MiCS"),
        ({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}}, "stale"),
        ({"zero_optimization": {"compute_grad_norm": False}}, "gradient norm"),
        ({"bfloat16": {"enabled": True}}, 'write "bf16"'),
        ({"optimizer": {"type": "Lamb"}}, "use Adam or AdamW"),
        ({"optimizer": {"params": {"adam_w_mode": False}}}, "decoupled"),
        ({"optimizer": {"params": {"max_grad_norm": 1.0}}}, "gradient_clipping"),
        ({"scheduler": {"type": "OneCycle"}}, "--lr-decay-style"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}}, '"warmup_type": "linear"'),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.1}}}, "warm-up starts at 0"),
        ({"communication_data_type": "int8"}, "communication_data_type is one of"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "fp32 run are summed in fp32, not in bf16"),
        ({"gradient_accumulation_steps": 0}, "at least 1"),
        ({"fp16": {"initial_scale_power": -1}}, "from 0 to 63"),
        ({"optimizer": {"params": {"betas": 0.9}}}, "a list of two numbers"),
        ({"optimizer": {"params": {"betas": [0.9, 2]}}}, "less than 1"),
        ({"gradient_clipping": "1.0"}, "clip"),
        (
            {"zero_optimization": {"reduce_bucket_size": "big"}},
            "reduce_bucket_size is a whole number of at least 1, not 'big'",
        ),
        ({"zero_optimization": {"stage3_max_live_parameters": 1.5}}, "is a whole number of at least 0, not 1.5"),
        ({"zero_optimization": {"overlap_comm": 1}}, "overlap_comm is true or false, not 1"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            "stays on the GPU at the first learning rate",
        ),
        ({"zero_optimization": {"offload_optimizer": {"cpuadam_cores_perc": 0.5}}}, "for SuperOffload only"),
        ({"aio": {"block_size": 1}}, "nothing is offloaded"),
        ({"bf16": {"check_grad_overflow": "no"}}, "check_grad_overflow is true or false"),
        ({"steps_per_print": "x"}, "a whole number of at least 1, not 'x'"),
        ({"steps_per_print": 0}, "a whole number of at least 1, not 0"),
        ({"steps_per_print": -1}, "a whole number of at least 1, not -1"),
        ({"steps_per_print": float("nan")}, "a whole number of at least 1, not nan"),
        ({"log_level": "x"}, "log_level is one of debug, info, warning, error, critical, not 'x'"),
        ({"log_level": 3}, "log_level is one of"),
        ({"flops_profiler": {"profile_step": "x"}}, "flops_profiler.profile_step is a whole number"),
        ({"comms_logger": {"enabled": "x"}}, "comms_logger.enabled is true or false"),
        ({"timers": {"throughput": {"enabled": 3}}}, "timers.throughput.enabled is true or false"),
        ({"checkpoint": {"tag_validation": "Foo"}}, "tag_validation is one of Ignore, Warn, Fail, not 'Foo'"),
        ({"wall_clock_breakdown": "x"}, "wall_clock_breakdown is true or false"),
        ({"vocabulary_size": "x"}, "vocabulary_size is a whole number"),
        (
            {
                "aio": {"block_size": "x"},
                "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "x"}},
            },
            "aio.block_size is a whole number",
        ),
        ({"data_types": {"keep_in_fp32_modules": 3}}, 'is "auto" or a list of names, not 3'),
        ({"zero_optimization": {"leaf_module": {"classes": 3}}}, "classes is a name or a list of names, not 3"),
        ({"zero_optimization": {"reduce_bucket_size": 10**400}}, "reduce_bucket_size is a whole number"),
        ({"gradient_clipping": 10**400}, "gradient_clipping is a number"),
        ({"gradient_accumulation_steps": 10**12}, "global_batch_size is a number less than or equal to 1000000000"),
        ({"gradient_accumulation_steps": 2.5}, "gradient_accumulation_steps is a whole number of at least 1, not 2.5"),
        ({"zero_optimization": {"overlap_comm": "auto"}}, "write true or false, or remove the key"),
        ({"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}, "write a whole number of at least 0, or"),
        ({"scheduler": []}, "scheduler is an object {…}, not []"),
        ({"data_types": {"grad_accum_dtype": 3}}, "grad_accum_dtype is one of bf16, fp16, fp32, not 3"),
        ({"zero_optimization": {"offload_param": {"device": 3}}}, "offload_param.device is text, not 3"),
    ],
)
def test_deepspeed_key_that_fights_with_us_is_refused_with_the_way_out(tmp_path, content, part):
    assert part in only_problem(with_json(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [
        {"activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False}},
        {"activation_checkpointing": {"number_checkpoints": None, "contiguous_memory_optimization": False}},
        {"pipeline": {"activation_checkpoint_interval": 0, "stages": "auto", "seed_layers": False}},
        {"torch_autocast": {"enabled": False}},
        {"prescale_gradients": False, "gradient_predivide_factor": 1.0, "gradient_allreduce_op": "mean"},
        {"checkpoint": {"load_universal": False}},
        {"data_efficiency": {"enabled": False, "whatever": 1}},
        {"optimizer": {"params": {"adam_w_mode": True, "bias_correction": True}}},
    ],
)
def test_deepspeed_key_whose_value_changes_nothing_is_accepted_and_dropped(tmp_path, content):
    assert not set(content) & set(resolved(with_json(tmp_path, content)).deepspeed)


def test_deepspeed_keys_that_are_passed_on_arrive_unchanged(tmp_path):
    content = {
        "communication_data_type": "fp32",
        "wall_clock_breakdown": True,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7, "overlap_comm": False},
        "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
        "pipeline": {"pipe_partitioned": False},
        "bf16": {"enabled": True, "check_grad_overflow": False},
    }
    final = resolved(with_json(tmp_path, content)).deepspeed
    for key, value in content.items():
        assert final[key] == value
    assert final["data_types"] == {"grad_accum_dtype": "fp32"}


def test_grad_accum_dtype_of_the_user_is_honoured(tmp_path):
    final = resolved(with_json(tmp_path, {"data_types": {"grad_accum_dtype": "bf16"}}, "--bf16")).deepspeed
    assert final["data_types"] == {"grad_accum_dtype": "bf16"}


@pytest.mark.parametrize(
    ("zero", "extra", "world_size", "part"),
    [
        ({"stage": 2, "offload_param": {"device": "cpu"}}, [], 1, "offload_param needs ZeRO stage 3, not 2"),
        ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, [], 1, "offload_optimizer needs ZeRO stage 1, 2 or 3"),
        ({"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "x"}}, [], 1, "with wrong gradients"),
        ({"stage": 3, "offload_param": {"device": "nvme"}}, [], 1, "offload_param to nvme doesn't say where"),
        (
            {"stage": 2, "offload_param": {"device": "nvme", "nvme_path": "x"}},
            [],
            1,
            "to nvme needs ZeRO stage 3, not 2",
        ),
        ({"stage": 3, "offload_optimizer": {"device": "disk"}}, [], 1, "the devices are none, cpu"),
        ({"stage": 3, "offload_param": {"device": "disk"}}, [], 1, "the devices are none, cpu, nvme"),
        ({"stage": 3, "offload_optimizer": {"device": "cpu", "nvme_path": "x"}}, [], 1, "nvme_path has no effect"),
        ({"stage": 3, "offload_optimizer": {"device": "cpu", "pipeline_read": True}}, [], 1, "pipeline_read has no"),
        ({"stage": 3, "offload_param": {"device": "cpu", "max_in_cpu": 5}}, [], 1, "max_in_cpu has no effect"),
        ({"offload_param": {"buffer_size": 5}}, [], 1, "no effect with the device none"),
        (
            {"stage": 1, "offload_optimizer": {"device": "cpu"}},
            ["--pipeline-model-parallel-size", "2"],
            2,
            "can't run with a pipeline of 2 stages",
        ),
    ],
)
def test_offload_that_does_not_fit_is_refused(tmp_path, zero, extra, world_size, part):
    assert part in only_problem(with_json(tmp_path, {"zero_optimization": zero}, *extra), world_size)


@pytest.mark.parametrize(("stage", "param"), [(1, None), (2, None), (3, None), (3, "cpu"), (2, "none")])
def test_offload_that_fits_is_passed_on(tmp_path, stage, param):
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    if param is not None:
        zero["offload_param"] = {"device": param}
    assert resolved(with_json(tmp_path, {"zero_optimization": zero})).deepspeed["zero_optimization"] == zero


def test_offload_to_disks_is_passed_on(tmp_path):
    disk = {"device": "nvme", "nvme_path": "x"}
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {**disk, "max_in_cpu": 9}}
    content = {"zero_optimization": zero, "aio": {"block_size": 4096}}
    final = resolved(with_json(tmp_path, content)).deepspeed
    assert {key: final[key] for key in content} == content


def test_defaults_of_offload_to_disks_beside_the_cpu_are_fine(tmp_path):
    optimizer = {"device": "cpu", "nvme_path": None, "buffer_count": 4, "fast_init": False, "ratio": 1.0}
    param = {"device": "cpu", "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}
    content = {"zero_optimization": {"stage": 3, "offload_optimizer": optimizer, "offload_param": param}}
    assert resolved(with_json(tmp_path, content)).deepspeed["zero_optimization"]["offload_param"] == param


def test_sequence_parallel_stages_send_whole_slices(tmp_path):
    flags = ("--sequence-parallel", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2")
    sent = {"pipe_partitioned": False, "grad_partitioned": False}
    assert resolved(words(*flags), 4).deepspeed["pipeline"] == sent
    assert "pipeline" not in resolved(words(*flags[1:]), 4).deepspeed
    argv = with_json(tmp_path, {"pipeline": {"pipe_partitioned": True}}, *flags)
    assert "pipe_partitioned can't be with sequence_parallel" in only_problem(argv, 4)


def test_fp16_block_carries_our_options():
    argv = words("--fp16", "--initial-loss-scale", "4096", "--hysteresis", "1")
    final = resolve(argv, {"DS_ACCELERATOR": "cuda"}, "x").deepspeed
    assert final["fp16"] == {
        "enabled": True,
        "loss_scale": 0.0,
        "initial_scale_power": 12,
        "loss_scale_window": 1000,
        "hysteresis": 1,
        "min_loss_scale": 1,
    }
    assert final["bf16"] == {"enabled": False}
    assert final["zero_optimization"] == {"stage": 1}
    assert final["data_types"] == {"grad_accum_dtype": "fp32"}


KEYS = [*OURS, *REFUSED, *PASSED, *(f"{block}.{key}".lstrip(".") for block, keys in PASSED.items() for key in keys)]


def nested(dotted: str, value: Any) -> dict[str, Any]:
    for part in reversed(dotted.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("value", [None, True, -1, 2.5, 1e400, "x", "auto", [], [[]], {}, {"x": {"y": []}}], ids=repr)
def test_deepspeed_key_with_any_value_is_resolved_or_refused_and_never_crashes(tmp_path, value):
    for key in filter(None, KEYS):
        result, found = collect(with_json(tmp_path, nested(key, value)), environ())
        assert found or (result is not None and result.deepspeed), key
