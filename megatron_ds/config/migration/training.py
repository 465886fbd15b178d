"""Flags of others about batches, the learning rate, the optimizer and precision."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Renamed, Topic

_IN_SAMPLES = "samples / global batch size, rounded down"
_IN_TOKENS = "tokens / (global batch size x sequence length), rounded down"
_ADAMW = "leave it out: AdamW is the optimizer"
_STEADY = "leave it out: --weight-decay is the same in all steps"
_STOPPED = "leave it out: SIGTERM and Ctrl-C always save and end the run"

BATCHES = Topic(
    "Batches and steps",
    accepted=Names(
        both="--micro-batch-size --global-batch-size --train-iters --eval-iters --eval-interval --exit-interval "
        "--exit-duration-in-mins --seed",
    ),
    renamed=(
        Renamed("micro_batch_size", Names(both="--batch-size", others="--per-device-train-batch-size")),
        Renamed("train_iters", Names(others="--max-steps --train-steps")),
    ),
    refused=(
        Refused(f"give --train-iters: {_IN_SAMPLES}", Names(both="--train-samples")),
        Refused(
            f"give --train-iters: {_IN_TOKENS} (of train-samples and train-tokens the smaller number)",
            Names(both="--train-tokens"),
        ),
        Refused(f"give --eval-iters: {_IN_SAMPLES}", Names(others="--eval-samples")),
        Refused(
            "leave it out: the batch is as large in all steps; give --global-batch-size, and --train-iters = samples / "
            "global batch size",
            Names(both="--rampup-batch-size"),
        ),
        Refused(
            "leave it out, and let `megatron-ds evaluate --load DIR` score the checkpoint",
            Names(bloom="--eval-only", microsoft="--skip-train"),
        ),
        Refused(
            "not supported: go on from a checkpoint before the bad samples with another --seed and --allow-data-change",
            Names(bloom="--skip-train-iteration-range"),
        ),
        Refused(
            _STOPPED,
            Names(
                both="--adlr-autoresume --adlr-autoresume-interval",
                bloom="--kill-switch-path",
                microsoft="--kill-switch-file --exit-signal-handler",
            ),
        ),
        Refused(
            "not supported: lengths of samples and layers' tokens are the same in all steps",
            Names(microsoft="--random-ltd --data-efficiency-curriculum-learning"),
        ),
        Refused(
            "leave it out: a gradient that is not finite always ends the run (fp16: is skipped)",
            Names(others="--no-check-for-nan-in-loss-and-grad --check-for-nan-in-loss-and-grad"),
        ),
    ),
    notes={
        "--global-batch-size": "a multiple of micro-batch size x data-parallel size, as in both forks",
        "--seed": "the same number gives other initial weights and another order of samples than in the forks, and "
        "the same ones here at every layout",
        "--eval-iters": "global batches, from the first one of the set at each evaluation; the forks go on where the "
        "last one ended",
        "--exit-duration-in-mins": "may have a fraction",
    },
)

LEARNING_RATE = Topic(
    "Learning rate and optimizer",
    accepted=Names(
        both="--lr --min-lr --lr-decay-style --lr-decay-iters --lr-warmup-iters --lr-warmup-fraction --weight-decay "
        "--clip-grad --adam-beta1 --adam-beta2 --adam-eps --override-lr-scheduler --use-checkpoint-lr-scheduler",
        microsoft="--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
    ),
    renamed=(
        Renamed("lr", Names(others="--learning-rate")),
        Renamed("lr_warmup_fraction", Names(both="--warmup")),
        Renamed("lr_warmup_iters", Names(others="--lr-warmup-steps --warmup-steps")),
        Renamed("clip_grad", Names(others="grad_clip max_grad_norm")),
    ),
    refused=(
        Refused(
            "give --override-lr-scheduler: the schedule is this command's, at the step that was loaded; in the fork it "
            "begins anew",
            Names(microsoft="--no-load-lr-state"),
        ),
        Refused(f"give --lr-decay-iters: {_IN_SAMPLES}", Names(both="--lr-decay-samples")),
        Refused(f"give --lr-decay-iters: {_IN_TOKENS}", Names(both="--lr-decay-tokens")),
        Refused(f"give --lr-warmup-iters: {_IN_SAMPLES}", Names(both="--lr-warmup-samples")),
        Refused(f"give --lr-warmup-iters: {_IN_TOKENS}", Names(microsoft="--lr-warmup-tokens")),
        Refused(
            _ADAMW,
            Names(
                both="--optimizer --sgd-momentum",
                bloom="--use-bnb-optimizer",
                microsoft="--torch_adam --ds_fused_adam",
            ),
        ),
        Refused(_STEADY, Names(microsoft="--weight-decay-incr-style --start-weight-decay --end-weight-decay")),
    ),
    notes={
        "--lr": "the schedule is a step ahead of the forks', whose first step in a warm-up has a rate of 0",
        "--lr-decay-style": "`inverse-square-root` of Microsoft's fork is not supported",
        "--lr-decay-iters": "with a batch that grows (--rampup-batch-size), the forks' curve in samples is another one",
        "--weight-decay": "decoupled, of matrices alone: norms and biases have none, as in both forks",
        "--clip-grad": "in force, and the same as the DeepSpeed JSON's gradient_clipping; in the forks "
        "the JSON's alone is",
        "--override-lr-scheduler": "needed where the checkpoint has another schedule, which without it is an error",
    },
)

PRECISION = Topic(
    "Precision",
    accepted=Names(
        both="--fp16 --bf16 --loss-scale --initial-loss-scale --min-loss-scale --loss-scale-window --hysteresis"
    ),
    refused=(Refused("leave it out: the loss is computed in fp32", Names(both="--fp16-lm-cross-entropy")),),
    notes={
        "--bf16": "fp32 masters, and gradients summed in fp32. A DeepSpeed JSON that says fp16 beside it is an error",
        "--fp16": "a DeepSpeed JSON that says bf16 beside it is an error; in the forks the JSON's word counts for "
        "DeepSpeed and the flag's for the layers",
        "--loss-scale": "0 stands for a dynamic one, which is the default",
        "--initial-loss-scale": "default 65536, not 2^32; in force, and the same as the DeepSpeed JSON's",
        "--loss-scale-window": "a whole number; in force, and the same as the DeepSpeed JSON's",
    },
)
