"""Options of Megatron-LM, its forks and Hugging Face that have another name here, or no counterpart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

_COMPILED = "leave it out: nothing is compiled at the start, and PyTorch chooses its kernels"
_ONE_MODEL = "leave it out: there is one implementation of the layers, in PyTorch"
_ATTENTION = "leave it out, or give --attention-backend flash: by default the fastest kernel that fits is taken"
_ZERO_1 = "give --zero-stage 1, which shards the optimizer's state"
_OVERLAP = 'write "zero_optimization": {"overlap_comm": true} into the DeepSpeed JSON'
_OFFLOAD = 'write "zero_optimization": {"offload_optimizer": {"device": "cpu"}} into the DeepSpeed JSON'
_IN_SAMPLES = "give it in steps: samples / global batch size"
_IN_TOKENS = "give it in steps: tokens / (global batch size x sequence length)"
_ONE_SCHEDULE = "leave it out: pipelines run DeepSpeed's 1F1B schedule, without virtual stages"
_COUNTED = "give --pp-partition-method layers:N,N,… with the number of layers of each stage"
_NO_EXPERTS = "mixtures of experts are not supported"
_NO_CONTEXT = "leave it out: a sequence is not cut over ranks of its own; --sequence-parallel cuts it over the TP ranks"
_ANY_LAYOUT = "leave it out: a checkpoint loads at any layout and ZeRO stage"
_WHOLE = "leave it out: a checkpoint is always whole"
_MAPPED = "leave it out: data is always memory-mapped"
_EQUAL_COPIES = "leave it out: copies of a parameter stay equal to the bit; --check-tp-replicas-interval N checks it"
_IN_FP32 = "leave it out: attention's kernels sum in fp32, at any precision"
_REPORTED = "leave it out: it is reported always, and in TensorBoard where --tensorboard-dir is given"
_STEADY = "leave it out: --weight-decay is the same in all steps"
_DISTRIBUTED = "leave it out: DeepSpeed decides how gradients are summed"
_NO_MOMENTS = "leave it out: AdamW is the optimizer"
_NO_FP8 = "8-bit training is not supported: give --bf16"

# What to do -> flags of others. A flag that is an option here as well would never be looked up.
_ADVICE: Mapping[str, tuple[str, ...]] = {
    # Attention and layers
    _ATTENTION: ("--use-flash-attn", "--use-flash-attn-v2", "--use-flash-attn-triton", "--use-flash-attn-builder"),
    _IN_FP32: (
        *("--attention-softmax-in-fp32", "--no-attention-softmax-in-fp32"),
        *("--apply-query-key-layer-scaling", "--no-query-key-layer-scaling"),
    ),
    _ONE_MODEL: (
        *("--transformer-impl", "--use-mcore-models", "--use-legacy-models", "--spec", "--deprecated-use-mcore-models"),
        *("--use-fused-rmsnorm", "--no-persist-layer-norm", "--use-transformer-engine-op-fuser"),
    ),
    _COMPILED: (
        *("--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion", "--no-rope-fusion"),
        *("--no-bias-dropout-fusion", "--bias-dropout-fusion", "--bias-gelu-fusion", "--masked-softmax-fusion"),
        *("--no-gradient-accumulation-fusion", "--cross-entropy-loss-fusion", "--apply-rope-fusion"),
        "--abort-on-unmet-fused-kernel-constraints",
    ),
    "give --position-embedding-type none": ("--no-position-embedding",),
    "give --activation gelu_tanh": ("--openai-gelu",),
    "give --activation gelu": ("--onnx-safe",),
    "leave --untie-embeddings-and-output-weights out: they are tied unless it is given": ("--tie-word-embeddings",),
    _NO_EXPERTS: (
        *("--num-experts", "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--expert-interval"),
        *("--moe-router-topk", "--moe-grouped-gemm", "--moe-token-dispatcher-type", "--moe-aux-loss-coeff", "--topk"),
        *("--moe-router-load-balancing-type", "--moe-loss-coeff", "--moe-expert-parallel-size", "--mlp-type"),
    ),
    # Parallelism
    _ZERO_1: ("--use-distributed-optimizer",),
    "give --zero-stage 3, which shards the weights as well": ("--use-torch-fsdp2", "--use-custom-fsdp", "--use-fsdp"),
    _OVERLAP: ("--overlap-grad-reduce", "--overlap-param-gather"),
    _OFFLOAD: ("--cpu-optimizer", "--optimizer-cpu-offload", "--cpu-torch-adam"),
    _ONE_SCHEDULE: (
        *("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
        *("--overlap-p2p-communication", "--no-overlap-p2p-communication", "--no-scatter-gather-tensors-in-pipeline"),
    ),
    _COUNTED: (
        *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
        *("--pipeline-model-parallel-split-rank", "--pipeline-model-parallel-layout", "--standalone-embedding-stage"),
        *("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
    ),
    _NO_CONTEXT: ("--context-parallel-size", "--cp-comm-type", "--ds-sequence-parallel-size"),
    _EQUAL_COPIES: ("--sync-tp-duplicated-parameters",),
    _DISTRIBUTED: (
        *("--DDP-impl", "--use-contiguous-buffers-in-local-ddp", "--no-contiguous-buffers-in-local-ddp"),
        *("--no-async-tensor-model-parallel-allreduce", "--tp-comm-overlap", "--accumulate-allreduce-grads-in-fp32"),
        *("--zero-contigious-gradients", "--zero-reduce-scatter", "--zero-reduce-bucket-size"),
        "--zero-allgather-bucket-size",
    ),
    "leave it out: NCCL on GPUs, gloo on CPUs": ("--distributed-backend",),
    "leave it out: initial weights are the same on every device and at every layout": (
        *("--use-cpu-initialization", "--lazy-mpu-init", "--no-initialization"),
        "--init-method-xavier-uniform",
    ),
    # Recomputation
    "give --recompute-granularity selective": ("--recompute-modules",),
    "give --checkpoint-in-cpu": ("--cpu-offloading", "--cpu-offloading-num-layers"),
    "leave it out: DeepSpeed's activation checkpointing is not used, and ours has no such choice": (
        *("--contigious-checkpointing", "--synchronize-each-layer", "--profile-backward"),
    ),
    # Batches, steps, learning rate
    "give --micro-batch-size": ("--batch-size", "--per-device-train-batch-size"),
    "give --train-iters": ("--max-steps", "--train-steps"),
    "give --lr": ("--learning-rate",),
    "give --lr-warmup-iters": ("--lr-warmup-steps", "--warmup-steps"),
    "give --train-iters: samples / global batch size": ("--train-samples",),
    "give --eval-iters: samples / global batch size": ("--eval-samples",),
    "give --save-interval": ("--save-steps",),
    _IN_SAMPLES: ("--lr-decay-samples", "--lr-warmup-samples"),
    _IN_TOKENS: ("--train-tokens", "--lr-decay-tokens", "--lr-warmup-tokens"),
    "leave it out: the batch is as large in all steps; give --global-batch-size": ("--rampup-batch-size",),
    _NO_MOMENTS: ("--optimizer", "--sgd-momentum", "--use-bnb-optimizer", "--create-moe-param-group"),
    _STEADY: ("--weight-decay-incr-style", "--start-weight-decay", "--end-weight-decay"),
    "leave it out: a gradient that is not finite always ends the run (fp16: is skipped)": (
        *("--no-check-for-nan-in-loss-and-grad", "--check-for-nan-in-loss-and-grad"),
    ),
    _NO_FP8: ("--fp8-format", "--fp8-hybrid", "--fp8-e4m3", "--fp8-margin", "--fp8-amax-history-len"),
    # Data
    _MAPPED: ("--data-impl", "--dataset-impl", "--mmap-warmup", "--no-mmap-bin-files"),
    "give the file's text with --train-weighted-split-paths": ("--train-weighted-split-paths-path",),
    "give the file's texts with --valid-weighted-split-paths": ("--valid-weighted-split-paths-path",),
    "give the file's texts with --test-weighted-split-paths": ("--test-weighted-split-paths-path",),
    "give the prefixes with --train-data-path, --valid-data-path and --test-data-path": ("--per-split-data-args-path",),
    "leave it out: `bash scripts/quickstart.sh` makes data of the Python sources it finds": ("--mock-data",),
    "leave it out: masks are made where attention needs them": ("--no-create-attention-mask-in-dataloader",),
    "give --seq-length": ("--encoder-seq-length", "--max-seq-length", "--sequence-length"),
    "give --num-layers": ("--encoder-num-layers",),
    "give --pad-vocab-size-to": ("--padded-vocab-size",),
    # Checkpoints and reports
    "give --deepspeed_config": ("--deepscale-config",),
    "leave it out: DeepSpeed always runs": ("--deepscale", "--deepspeed-mpi"),
    _ANY_LAYOUT: (
        *(
            "--universal-checkpoint",
            "--use-dist-ckpt",
            "--ckpt-format",
            "--dist-ckpt-format",
            "--auto-detect-ckpt-format",
        ),
        *("--ckpt-fully-parallel-save", "--ckpt-fully-parallel-load", "--dist-ckpt-strictness"),
    ),
    _WHOLE: ("--no-save-optim", "--no-save-rng"),
    "leave it out: SIGTERM and Ctrl-C always save and end the run": ("--exit-signal-handler",),
    "give --override-lr-scheduler": ("--no-load-lr-state",),
    "leave it out: a checkpoint that isn't found always ends the run": ("--exit-on-missing-checkpoint",),
    "give the model's options, or --config with the run_config.json beside the checkpoint": ("--use-checkpoint-args",),
    "give --log-interval": ("--tensorboard-log-interval",),
    _REPORTED: (
        *("--log-throughput", "--log-learning-rate-to-tensorboard", "--log-loss-scale-to-tensorboard"),
        *("--log-memory-to-tensorboard", "--log-validation-ppl-to-tensorboard", "--log-timers-to-tensorboard"),
    ),
}

# Names in configs of Hugging Face, and short ones.
_RENAMED: Mapping[str, str] = {
    "tp": "tensor_model_parallel_size",
    "tp_size": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "pp_size": "pipeline_model_parallel_size",
    "stage": "zero_stage",
    "n_layer": "num_layers",
    "n_layers": "num_layers",
    "num_hidden_layers": "num_layers",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_heads": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
    "head_dim": "kv_channels",
    "hidden_act": "activation",
    "rms_norm_eps": "layernorm_epsilon",
    "layer_norm_eps": "layernorm_epsilon",
    "layer_norm_epsilon": "layernorm_epsilon",
    "initializer_range": "init_method_std",
    "partial_rotary_factor": "rotary_percent",
    "grad_clip": "clip_grad",
    "max_grad_norm": "clip_grad",
}

_IN_WORDS: Mapping[str, str] = {
    "dp": "leave it out: the data-parallel size is the number of processes / (TP x PP)",
    "dp_size": "leave it out: the data-parallel size is the number of processes / (TP x PP)",
    "tie_word_embeddings": "embeddings are tied unless untie_embeddings_and_output_weights is true",
    "rope_scaling": "use_rope_scaling is true for Llama 3's scaling, with rope_scaling_factor, rope_low_freq_factor, "
    "rope_high_freq_factor and rope_original_max_positions; rotary_seq_len_interpolation_factor is the linear one",
}


@cache
def _by_name() -> Mapping[str, str]:
    flags = {_key(flag): advice for advice, flags in _ADVICE.items() for flag in flags}
    return {**flags, **_IN_WORDS}


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_").lower()


def renamed(name: str) -> str | None:
    """The option's name here, for a name that it has elsewhere.

    Args:
        name: a flag or a key.
    """
    return _RENAMED.get(_key(name))


def advice_for(name: str) -> str | None:
    """What to do instead of giving an option that is not here.

    Args:
        name: a flag or a key.
    """
    return _by_name().get(_key(name))


def other_names() -> frozenset[str]:
    """Every name, in the spelling of JSON keys, that `renamed` or `advice_for` knows."""
    return frozenset(_RENAMED) | frozenset(_by_name())
