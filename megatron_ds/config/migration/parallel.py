"""Flags of others about processes, ZeRO and memory."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Renamed, Topic

_OFFLOAD = 'write "zero_optimization": {"offload_optimizer": {"device": "cpu"}} into the DeepSpeed JSON'
_OFFLOAD_WEIGHTS = 'write "zero_optimization": {"offload_param": {"device": …}} into the DeepSpeed JSON'
_ONE_SCHEDULE = "leave it out: pipelines run DeepSpeed's 1F1B schedule, without virtual stages"
_COUNTED = "give --pp-partition-method layers:N,N,… with the number of layers of each stage"
_NO_CONTEXT = "leave it out: a sequence is not cut over ranks of its own; --sequence-parallel cuts it over the TP ranks"
_DISTRIBUTED = "leave it out: DeepSpeed decides how gradients are summed"
_NO_SUCH_CHOICE = "leave it out: DeepSpeed's activation checkpointing is not used, and ours has no such choice"

PARALLEL = Topic(
    "Processes",
    accepted=Names(
        both="--tensor-model-parallel-size --pipeline-model-parallel-size --model-parallel-size --local_rank "
        "--zero-stage",
        bloom="--pp-partition-method",
        microsoft="--sequence-parallel --no-pipeline-parallel --distributed-timeout-minutes",
    ),
    renamed=(
        Renamed("tensor_model_parallel_size", Names(others="tp tp_size")),
        Renamed("pipeline_model_parallel_size", Names(others="pp pp_size")),
        Renamed("zero_stage", Names(others="stage")),
    ),
    refused=(
        Refused("leave it out: NCCL on GPUs, gloo on CPUs", Names(both="--distributed-backend")),
        Refused(
            _DISTRIBUTED,
            Names(
                both="--DDP-impl --use-contiguous-buffers-in-ddp --accumulate-allreduce-grads-in-fp32",
                microsoft="--no-contiguous-buffers-in-local-ddp --no-async-tensor-model-parallel-allreduce",
                others="--use-contiguous-buffers-in-local-ddp --tp-comm-overlap",
            ),
        ),
        Refused(
            "write it into the DeepSpeed JSON, where DeepSpeed reads it: the key under zero_optimization has the same "
            "name without the first word",
            Names(both="--zero-reduce-scatter --zero-reduce-bucket-size --zero-allgather-bucket-size"),
        ),
        Refused(
            'write "zero_optimization": {"contiguous_gradients": true} into the DeepSpeed JSON',
            Names(both="--zero-contigious-gradients"),
        ),
        Refused(
            "give --zero-stage 1, which shards the optimizer's state", Names(microsoft="--use-distributed-optimizer")
        ),
        Refused(
            "give --zero-stage 3, which shards the weights as well",
            Names(others="--use-torch-fsdp2 --use-custom-fsdp --use-fsdp"),
        ),
        Refused(
            'write "zero_optimization": {"overlap_comm": true} into the DeepSpeed JSON',
            Names(others="--overlap-grad-reduce --overlap-param-gather"),
        ),
        Refused(
            _ONE_SCHEDULE,
            Names(
                both="--num-layers-per-virtual-pipeline-stage --no-scatter-gather-tensors-in-pipeline",
                microsoft="--overlap-p2p-communication --enable-zbh1-pipeline --enable-zbh1-exact-semantics "
                "--use-ring-exchange-p2p",
                others="--num-virtual-stages-per-pipeline-rank --no-overlap-p2p-communication",
            ),
        ),
        Refused(
            _COUNTED,
            Names(
                microsoft="--standalone-embedding-stage --pipeline-model-parallel-split-rank",
                others="--decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers "
                "--pipeline-model-parallel-layout --account-for-embedding-in-pipeline-split "
                "--account-for-loss-in-pipeline-split",
            ),
        ),
        Refused(
            _NO_CONTEXT,
            Names(
                microsoft="--ds-sequence-parallel-size --force-ds-sequence-parallel --ds-sequence-parallel-fpdt "
                "--ds-sequence-parallel-fpdt-chunk-size --ds-sequence-parallel-fpdt-offloading",
                others="--context-parallel-size --cp-comm-type",
            ),
        ),
        Refused(
            "leave it out: copies of a parameter stay equal to the bit; --check-tp-replicas-interval N checks it",
            Names(bloom="--sync-tp-duplicated-parameters"),
        ),
        Refused("leave it out: DeepSpeed always runs", Names(both="--deepscale --deepspeed-mpi")),
        Refused("give --deepspeed_config", Names(both="--deepscale_config")),
        Refused(
            "leave it out: the data-parallel size is the number of processes / (TP x PP)", Names(others="dp dp_size")
        ),
    ),
    notes={
        "--tensor-model-parallel-size": "one that doesn't fit the processes is an error; the forks lower it in silence",
        "--pipeline-model-parallel-size": "one that doesn't fit the processes is an error; the forks lower it in "
        "silence. With 1 there is no pipeline engine, as with --no-pipeline-parallel",
        "--local_rank": "not used: ranks come from the environment",
        "--zero-stage": "in force, and the same as the DeepSpeed JSON's stage; in the forks the JSON's alone is. "
        "Default 0 for fp32 without a pipeline, else 1; bf16 needs 1 or more",
        "--pp-partition-method": "a pattern is matched with our classes, in which the head is a LanguageModelHead: for "
        "the stages of BLOOM 176B give `layers:5,6,6,6,6,6,6,6,6,6,6,5`",
        "--sequence-parallel": "doesn't ask for CUDA_DEVICE_MAX_CONNECTIONS=1",
    },
)

DEEPSPEED = Topic(
    "DeepSpeed's own flags", accepted=Names(both="--deepspeed --deepspeed_config"), notes={
        "--deepspeed": "not needed",
        "--deepspeed_config": "may hold the whole run, in a `megatron_ds` block; unknown and removed keys are refused "
        "([config.md](config.md#keys-of-a-deepspeed-json))",
    },
)  # fmt: skip

MEMORY = Topic(
    "Memory",
    accepted=Names(
        both="--checkpoint-activations --distribute-checkpointed-activations --checkpoint-num-layers "
        "--deepspeed-activation-checkpointing --partition-activations --checkpoint-in-cpu",
        microsoft="--recompute-activations --recompute-granularity --recompute-method --recompute-num-layers "
        "--distribute-saved-activations",
    ),
    refused=(
        Refused("give --recompute-granularity selective", Names(others="--recompute-modules")),
        Refused("give --checkpoint-in-cpu", Names(others="--cpu-offloading --cpu-offloading-num-layers")),
        Refused(_NO_SUCH_CHOICE, Names(both="--contigious-checkpointing --synchronize-each-layer --profile-backward")),
        Refused(_OFFLOAD, Names(both="--cpu-optimizer --cpu_torch_adam", others="--optimizer-cpu-offload")),
        Refused(_OFFLOAD_WEIGHTS, Names(both="--remote-device")),
        Refused('write "pin_memory": true beside that "device" in the DeepSpeed JSON', Names(both="--use-pin-memory")),
        Refused(
            "not supported: --checkpoint-activations and --sequence-parallel save more memory",
            Names(both="--scattered-embeddings --split-transformers"),
        ),
        Refused(
            "not supported: --zero-stage 3 and --tensor-model-parallel-size cut large matrices",
            Names(both="--memory-centric-tiled-linear --tile-factor"),
        ),
        Refused(
            "leave it out: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation",
            Names(microsoft="--empty-unused-memory-level"),
        ),
    ),
    notes={
        "--checkpoint-activations": "enough by itself; with DeepSpeed, the forks need "
        "--deepspeed-activation-checkpointing too",
        "--deepspeed-activation-checkpointing": "ours recomputes, not DeepSpeed",
        "--checkpoint-in-cpu": "with full recomputation, which is ours and not DeepSpeed's",
        "--recompute-method": "default with full recomputation: `uniform`; in Microsoft's fork it must be given",
    },
)
