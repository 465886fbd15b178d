from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.config.accelerator import accelerator_is_cpu
from tests.config.helpers import only_problem, problems, resolved, words

TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"

# extra flags, changed flags, processes, what the one problem says
BROKEN = {
    "heads_3_tp_2": (
        [TP, "2"],
        {"num_attention_heads": "3", "hidden_size": "36"},
        2,
        ["num_attention_heads 3", "size 2"],
    ),
    "hidden_30_heads_4": ([], {"hidden_size": "30"}, 1, ["hidden_size 30", "num_attention_heads 4", "28 or 32"]),
    "pad_501_tp_2": (
        ["--pad-vocab-size-to", "501", TP, "2"],
        {},
        2,
        [
            "pad_vocab_size_to 501",
            "tensor_model_parallel_size 2",
            "same number of rows",
            "use pad_vocab_size_to 502, or",
        ],
    ),
    "pad_divisor": (
        ["--pad-vocab-size-to", "500", "--make-vocab-size-divisible-by", "64"],
        {},
        1,
        ["pad_vocab_size_to 500", "make_vocab_size_divisible_by 64", "use pad_vocab_size_to 512, or"],
    ),
    "pad_less": (
        ["--pad-vocab-size-to", "256", "--vocab-size", "257"],
        {},
        1,
        ["pad_vocab_size_to 256 is less than the vocabulary of 257 ids", "use 257 or more"],
    ),
    "ranks_6_tp_4": ([TP, "4"], {}, 6, ["6 processes", "TP 4 x PP 1 = 4", "start 4 or 8 processes", "WORLD_SIZE"]),
    "ranks_1_tp_2": ([TP, "2"], {}, 1, ["1 process can't", "start 2 processes", "from WORLD_SIZE"]),
    "ffn_33_tp_2": ([TP, "2", "--ffn-hidden-size", "33"], {}, 2, ["ffn_hidden_size 33", "parallel_size 2", "32 or 34"]),
    "gbs_5_dp_2": (["--global-batch-size", "5"], {}, 2, ["global batch size 5", "data-parallel size 2 = 2", "4 or 6"]),
    "gbs_1_dp_2": (["--global-batch-size", "1"], {}, 2, ["use 2, or"]),
    "style_example": (
        ["--global-batch-size", "100"],
        {"micro_batch_size": "8"},
        4,
        ["100 is not a multiple of micro_batch_size 8 x data-parallel size 4 = 32", "use 96 or 128"],
    ),
    "zero_2_pp_2": (["--zero-stage", "2", PP, "2"], {}, 2, ["ZeRO stage 2", "three ways out", "ZeRO-1", "TP 1 -> 2"]),
    "zero_3_pp_2": (["--zero-stage", "3", PP, "2"], {}, 2, ["ZeRO stage 3", "three ways out"]),
    "zero_0_bf16": (
        ["--zero-stage", "0", "--bf16"],
        {},
        1,
        ["ZeRO stage 0", "bf16", "use ZeRO stage 1", "--zero-stage"],
    ),
    "fp16_cpu": (["--fp16"], {}, 1, ["fp16 needs a GPU", "--bf16, or fp32"]),
    "seq_positions": (["--max-position-embeddings", "8"], {}, 1, ["seq_length 16", "max_position_embeddings 8"]),
    "two_warmups": (
        ["--lr-warmup-iters", "2", "--lr-warmup-fraction", "0.1"],
        {},
        1,
        ["lr_warmup_iters and lr_warmup_fraction"],
    ),
    "min_lr": (["--min-lr", "1"], {}, 1, ["min_lr 1.0 is more than lr 0.001"]),
    "warmup_iters": (["--lr-warmup-iters", "7"], {}, 1, ["warm-up of 7 steps", "step 6", "--train-iters"]),
    "warmup_constant": (
        ["--lr-warmup-iters", "7", "--lr-decay-style", "constant", "--lr-decay-iters", "9"],
        {},
        1,
        ["warm-up of 7 steps is longer than the run", "step 6", "--train-iters"],
    ),
    "warmup_decay": (["--lr-warmup-iters", "5", "--lr-decay-iters", "4"], {}, 1, ["warm-up of 5", "--lr-decay-iters"]),
    "recompute_twice": (
        ["--checkpoint-activations", "--recompute-granularity", "selective"],
        {},
        1,
        ["recompute_granularity and checkpoint_activations", "different recomputation", "keep one"],
    ),
    "recompute_short_forms": (
        ["--checkpoint-activations", "--recompute-activations"],
        {},
        1,
        ["checkpoint_activations and recompute_activations"],
    ),
    "distribute_without_layers": (
        ["--distribute-saved-activations", "--recompute-granularity", "selective", TP, "2"],
        {},
        2,
        ["distribute_saved_activations is about", "recompute_granularity=selective", "--recompute-granularity full"],
    ),
    "distribute_with_sequence_parallel": (
        ["--checkpoint-activations", "--distribute-saved-activations", "--sequence-parallel", TP, "2"],
        {},
        2,
        ["distribute_saved_activations can't be with sequence_parallel", "keeps no more"],
    ),
    "cpu_without_layers": (["--checkpoint-in-cpu"], {}, 1, ["checkpoint_in_cpu is about", "leave checkpoint_in_cpu"]),
    "block_of_nothing": (
        ["--checkpoint-activations", "--recompute-method", "block"],
        {},
        1,
        ["recompute_method block", "give --recompute-num-layers"],
    ),
    "recompute_layers": (
        ["--checkpoint-activations", "--recompute-num-layers", "3"],
        {},
        1,
        ["recompute_num_layers 3 is more than the model's 2 layers", "use 2 or less"],
    ),
    "save_interval": (["--save-interval", "2"], {}, 1, ["save_interval is given and save is not", "--save FOLDER"]),
    "async_save": (["--async-save"], {}, 1, ["async_save is given and save is not", "--save FOLDER"]),
    "keep_last": (["--keep-last", "2"], {}, 1, ["keep_last is given and save is not"]),
    "keep_every": (["--save", "x", "--keep-every", "10"], {}, 1, ["keep_every is given", "--keep-last N"]),
    "fresh_start": (["--allow-fresh-start"], {}, 1, ["--load FOLDER"]),
    "seq_15_sequence_parallel": (
        [TP, "2", "--sequence-parallel"],
        {"seq_length": "15"},
        2,
        ["seq_length 15", "parallel_size 2", "as many tokens", "14 or 16"],
    ),
    "prefix_and_documents": (
        ["--prefix-lm", "--eod-id", "0", "--reset-attention-mask"],
        {},
        1,
        ["prefix_lm can't be with reset_attention_mask", "--prefix-lm or --reset-attention-mask"],
    ),
    "prefix_and_window": (["--prefix-lm", "--window-size", "4"], {}, 1, ["prefix_lm can't be with window_size"]),
    "groups_3_heads_4": (["--num-query-groups", "3"], {}, 1, ["num_attention_heads 4", "num_query_groups 3"]),
    "groups_6_tp_4": (
        [TP, "4", "--num-query-groups", "6"],
        {"num_attention_heads": "12", "hidden_size": "48"},
        4,
        ["num_query_groups 6 and tensor_model_parallel_size 4", "divides 6 or is a multiple"],
    ),
    "groups_1_tp_4_width_2": (
        [TP, "4", "--num-query-groups", "1", "--kv-channels", "2"],
        {},
        4,
        ["4 ranks share a head", "width 2", "TP that divides 2, or a head width that 4 divides", "kv_channels=2"],
    ),
    "groups_2_tp_8_width_2": (
        [TP, "8", "--num-query-groups", "2", "--kv-channels", "2"],
        {"num_attention_heads": "8"},
        8,
        ["4 ranks share a head", "TP that divides 2, or 2 x a number that divides 2, or a head width that 4 divides"],
    ),
    "swiglu_width_tp_3": (
        [TP, "3", "--swiglu"],
        {"num_attention_heads": "3", "hidden_size": "36"},
        3,
        ["8/3 x hidden_size 36 = 64", "parallel_size 3", "activation=swiglu", "--ffn-hidden-size"],
    ),
    "rotary_odd_in_binary": (
        ["--position-embedding-type", "rope", "--rotary-percent", "0.29", "--kv-channels", "200"],
        {},
        1,
        ["rounded down, is 57: in floating point", "it is 57.99999999999999", "--rotary-percent 0.290001 gives 58;"],
    ),
    "linear_scaling_below_1": (
        ["--position-embedding-type", "rope", "--rotary-seq-len-interpolation-factor", "1e-45"],
        {},
        1,
        ["greater than or equal to 1", "use at least 1"],
    ),
    "epsilon_that_is_zero_in_fp32": (["--adam-eps", "1e-46"], {}, 1, ["adam_eps is a number", "use at least 1e-30"]),
    "rotary_base_of_a_preset": (
        ["--model-preset", "llama3_8b", "--position-embedding-type", "alibi", "--num-query-groups", "4"],
        {},
        1,
        ["from preset llama3_8b", "or --rotary-base 10000.0, its default, as well: the preset has rotary_base for"],
    ),
    "rotary_odd": (
        ["--position-embedding-type", "rope", "--rotary-percent", "0.4"],
        {},
        1,
        ["turn pairs", "0.4 of a head's width 8, rounded down, is 3", "hidden_size=32", "--rotary-percent"],
    ),
    "rotary_odd_width": (
        ["--position-embedding-type", "rope", "--kv-channels", "15"],
        {},
        1,
        ["1.0 of a head's width 15", "kv_channels=15", "from --kv-channels"],
    ),
    "rotary_without_rope": (
        ["--rotary-base", "500"],
        {},
        1,
        ["rotary_base is given, and position_embedding_type is learned_absolute", "--position-embedding-type rope"],
    ),
    "rope_scaling_with_alibi": (
        ["--use-rope-scaling", "--position-embedding-type", "alibi"],
        {},
        1,
        ["use_rope_scaling is given, and position_embedding_type is alibi", "leave use_rope_scaling out"],
    ),
    "scaling_numbers": (
        ["--position-embedding-type", "rope", "--rope-scaling-factor", "4"],
        {},
        1,
        ["rope_scaling_factor is given, and use_rope_scaling is false", "--use-rope-scaling"],
    ),
    "two_scalings": (
        ["--position-embedding-type", "rope", "--use-rope-scaling", "--rotary-seq-len-interpolation-factor", "2"],
        {},
        1,
        ["use_rope_scaling and rotary_seq_len_interpolation_factor are both given"],
    ),
    "scaling_order": (
        ["--position-embedding-type", "rope", "--use-rope-scaling", "--rope-low-freq-factor", "4"],
        {},
        1,
        ["rope_low_freq_factor 4.0 is not below rope_high_freq_factor 4.0"],
    ),
    "deepnorm_alpha": (
        ["--deepnorm-alpha", "3"],
        {},
        1,
        ["deepnorm_alpha is given, and residual_connection is pre_ln", "--residual-connection deepnorm"],
    ),
    "fp32_post_ln": (
        ["--bf16", "--fp32-residual-connection", "--apply-residual-connection-post-layernorm"],
        {},
        1,
        ["fp32_residual_connection can't be with residual_connection post_ln", "pre_ln or parallel"],
    ),
    "query_groups_switch": (
        ["--group-query-attention"],
        {},
        1,
        ["--group-query-attention is given and num_query_groups is not", "--num-query-groups N"],
    ),
    "two_activations": (
        ["--swiglu", "--squared-relu"],
        {"hidden_size": "36", "num_attention_heads": "3"},
        1,
        ["--swiglu and --squared-relu contradict each other", "keep one of the two"],
    ),
    "two_residuals": (
        ["--residual-connection", "deepnorm", "--parallel-residual"],
        {},
        1,
        ["--residual-connection and --parallel-residual contradict", "deepnorm or parallel"],
    ),
    "partition": (["--pp-partition-method", "even"], {}, 1, ["'even' is unknown", "type:transformer"]),
    "partition_words": (["--pp-partition-method", "layers:1,x"], {}, 1, ["whole numbers with commas", "layers:1,x"]),
    "partition_stages": (
        ["--pp-partition-method", "layers:1,1,2", PP, "2"],
        {"num_layers": "4"},
        2,
        ["numbers for 3 stages, and the pipeline has 2", "layers:2,2"],
    ),
    "partition_one_stage": (["--pp-partition-method", "layers:1,1"], {}, 1, ["2 stages, and the pipeline has 1"]),
    "partition_sum": (
        ["--pp-partition-method", "layers:1,3", PP, "2"],
        {"num_layers": "5"},
        2,
        ["1 + 3 = 4 transformer layers, and the model has 5", "layers:3,2"],
    ),
    "partition_hole": (
        ["--pp-partition-method", "layers:3,0,1", PP, "3"],
        {"num_layers": "4"},
        3,
        ["stage 1 (counted from 0) without a layer", "layers:2,1,1"],
    ),
    "partition_regex": (["--pp-partition-method", "type:("], {}, 1, ["no regular expression", "type:transformer"]),
    "partition_no_layer": (
        ["--pp-partition-method", "type:mlp", PP, "2"],
        {},
        2,
        ["'type:mlp' matches no layer", "ParallelTransformerLayer", "type:transformer is the usual one"],
    ),
    "layers_1_pp_2": (
        [PP, "2"],
        {"num_layers": "1"},
        2,
        [
            "1 transformer layer can't fill 2 pipeline stages: each stage has at least one, unless they are counted",
            "use pipeline size 1, or at least 2 layers",
            "--pp-partition-method layers:1,0",
        ],
    ),
    "partition_few_layers": (
        ["--pp-partition-method", "layers:0,1,0,0", PP, "4"],
        {"num_layers": "1"},
        4,
        [
            "1 transformer layer can't fill 4 pipeline stages",
            "the first and the last",
            "at most 3, or at least 2 layers",
        ],
    ),
    "layers_2_pp_4": (
        [PP, "4"],
        {},
        4,
        [
            "2 transformer layers can't fill 4",
            "at most 2, or at least 4 layers",
            "each stage has at least one, unless they are counted out",
            "--pp-partition-method layers:0,1,1,0",
        ],
    ),
    "partition_sum_of_few": (
        ["--pp-partition-method", "layers:0,1,1,0", PP, "4"],
        {"num_layers": "3"},
        4,
        ["0 + 1 + 1 + 0 = 2 transformer layers, and the model has 3", "layers:1,1,1,0"],
    ),
    "seq_and_positions": (
        [TP, "2", "--sequence-parallel", "--max-position-embeddings", "15"],
        {"seq_length": "15"},
        2,
        ["seq_length 15 is not a multiple", "use seq_length 14, or another"],
    ),
    "hidden_30_rope": (
        ["--position-embedding-type", "rope"],
        {"hidden_size": "30"},
        1,
        # 28 would give heads of 7, whose numbers don't pair up.
        ["hidden_size 30 is not a multiple", "use hidden_size 24 or 32, or another"],
    ),
    "heads_4_groups_3_none": (["--num-query-groups", "3"], {}, 1, ["use another num_query_groups"]),
    "pad_258_tp_4": (
        ["--pad-vocab-size-to", "258", "--vocab-size", "257", TP, "4"],
        {},
        4,
        ["pad_vocab_size_to 258 is not a multiple", "use pad_vocab_size_to 260, or another"],
    ),
    "pad_256_tp_4": (
        ["--pad-vocab-size-to", "256", "--vocab-size", "257", TP, "4"],
        {},
        4,
        ["less than the vocabulary of 257 ids", "use 260 or a larger multiple of 4, or leave"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_rule_broken_gives_one_problem_with_numbers_origin_and_way_out(case):
    """Among them P10 (ZeRO 2 and 3 with a pipeline), P15 (sizes), P16 (shared heads) and M2 (bf16 at ZeRO stage 0)."""
    extra, changes, world_size, parts = BROKEN[case]
    text = only_problem(words(*extra, **changes), world_size)
    for part in parts:
        assert part in text
    assert "  from " in text


def test_bf16_and_fp16_both_are_refused():
    texts = [str(problem) for problem in problems(words("--bf16", "--fp16"), DS_ACCELERATOR="cuda")]
    assert len(texts) == 1 and "bf16 and fp16 are both on" in texts[0]


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        (["--initial-loss-scale", "1000"], "use 512 or 1024"),
        (["--min-loss-scale", "0.5"], "min_loss_scale 0.5 is not a whole number"),
        (["--zero-stage", "0"], "ZeRO stage 0 can't run with fp16"),
    ],
)
def test_fp16_with_scales_or_stage_that_deepspeed_gets_wrong_is_refused(extra, part):
    assert part in only_problem(words("--fp16", *extra), DS_ACCELERATOR="cuda")


@pytest.mark.parametrize(
    ("extra", "changes", "world_size"),
    [
        ([PP, "2"], {"num_layers": "3"}, 2),
        ([TP, "2"], {"num_layers": "1"}, 2),
        (["--zero-stage", "1", PP, "2"], {}, 2),
        (["--zero-stage", "3", TP, "2"], {}, 4),
        (["--zero-stage", "0"], {}, 1),
        (
            [
                *("--model-preset", "llama3p1_8b", "--position-embedding-type", "alibi", "--num-query-groups", "4"),
                *("--rotary-base", "10000.0", "--no-use-rope-scaling"),
            ],
            {},
            1,
        ),
        (["--position-embedding-type", "rope", "--rotary-percent", "0.290001", "--kv-channels", "200"], {}, 1),
        (["--lr-warmup-iters", "6", "--lr-decay-style", "constant"], {}, 1),
        (["--lr-warmup-iters", "7", "--lr-decay-iters", "9"], {}, 1),
        (["--max-position-embeddings", "32"], {}, 1),
        (["--pad-vocab-size-to", "500", TP, "4"], {}, 4),
        (["--pad-vocab-size-to", "257", "--vocab-size", "257"], {}, 1),
        (["--pp-partition-method", "type:embed|transformer"], {}, 1),
        (["--checkpoint-activations", "--recompute-granularity", "full", "--distribute-saved-activations"], {}, 1),
        (["--pp-partition-method", "layers:0,3,1", PP, "3"], {"num_layers": "4"}, 3),
        (["--pp-partition-method", "Layers: 3, 1", PP, "2"], {"num_layers": "4"}, 2),
        (["--pp-partition-method", "layers:0,1,2,0", PP, "4"], {"num_layers": "3"}, 4),
        (["--pp-partition-method", "layers:0,1", PP, "2"], {"num_layers": "1"}, 2),
        (["--pp-partition-method", "TYPE:LayerNorm", PP, "2"], {}, 2),
        (["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "2"], {}, 1),
    ],
)
def test_rule_kept_resolves(extra, changes, world_size):
    assert resolved(words(*extra, **changes), world_size).run.world_size == world_size


@pytest.mark.parametrize(
    ("extra", "recompute"),
    [
        ([], None),
        (["--checkpoint-activations"], "full"),
        (["--recompute-activations"], "selective"),
        (["--recompute-granularity", "selective"], "selective"),
        (["--recompute-granularity", "full"], "full"),
    ],
)
def test_recompute_is_what_one_of_its_options_says(extra, recompute):
    assert resolved(words(*extra)).run.training.recompute == recompute


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_pad_vocab_size_to_is_the_padded_size_at_every_tp(tp_size):
    extra = ["--pad-vocab-size-to", "500", "--vocab-size", "259", TP, str(tp_size)]
    model = resolved(words(*extra), tp_size).run.model
    assert (model.vocab_size, model.padded_vocab_size(tp_size)) == (259, 500)


@pytest.mark.parametrize(
    ("extra", "world_size", "stage"),
    [([], 1, 0), ([PP, "2"], 2, 1), (["--bf16"], 1, 1), ([TP, "2"], 2, 0), (["--zero-stage", "2"], 1, 2)],
)
def test_zero_stage_not_given_follows_from_precision_and_pipeline(extra, world_size, stage):
    result = resolved(words(*extra), world_size)
    assert result.run.zero_stage == stage
    assert result.run.parallel.zero_stage == stage
    assert result.deepspeed["zero_optimization"]["stage"] == stage


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["flex", "--attention-dropout", "0.1"], ["flex has no dropout", "attention_dropout is 0.1"]),
        (["flex", "--kv-channels", "8"], ["heads of at least 16, and these have 8"]),
        (["flash"], ["flash takes 16-bit numbers only", "--bf16"]),
        (["cudnn"], ["cudnn takes 16-bit numbers only"]),
        (["flash", "--bf16", "--window-size", "4"], ["flash knows no mask, which window_size needs"]),
        (["flash", "--bf16", "--position-embedding-type", "alibi"], ["which position_embedding_type needs"]),
    ],
)
def test_attention_backend_that_does_not_fit_is_refused(flags: list[str], parts: list[str]) -> None:
    base = ["--attention-dropout", "0", "--kv-channels", "16", "--attention-backend", *flags]
    text = only_problem(words(*base), DS_ACCELERATOR="cuda")
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("backend", ["cudnn", "flash", "efficient", "flex"])
def test_attention_backend_of_a_gpu_is_refused_on_a_cpu(backend: str) -> None:
    words_ = words("--bf16", "--attention-dropout", "0", "--kv-channels", "16", "--attention-backend", backend)
    assert f"attention_backend {backend} needs a GPU" in only_problem(words_)


@pytest.mark.parametrize(
    ("environ", "nodes", "is_cpu"),
    [
        ({"DS_ACCELERATOR": "cpu"}, ["nvidia0"], True),
        ({"DS_ACCELERATOR": "cuda"}, [], False),
        ({}, [], True),
        ({}, ["null", "nvidiactl"], True),
        ({}, ["nvidia0"], False),
        ({}, ["nvidia11"], False),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["nvidia0"], True),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ["nvidia0"], True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["nvidia0"], False),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["kfd"], False),
        ({}, ["dxg"], False),
    ],
)
def test_accelerator_is_cpu_without_torch(tmp_path: Path, environ, nodes, is_cpu):
    for node in nodes:
        (tmp_path / node).touch()
    assert accelerator_is_cpu(environ, tmp_path) is is_cpu
