"""Flags of others about checkpoints and reports."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Renamed, Topic

_ANY_LAYOUT = "leave it out: a checkpoint loads at any layout and ZeRO stage"
_WHOLE = "leave it out: a checkpoint is always whole"
_ASYNC = "give --async-save, with which training goes on while a checkpoint is written"
_REPORTED = "leave it out: it is reported always, and in TensorBoard where --tensorboard-dir is given"
_TIMED = (
    'leave it out: the seconds of each step are reported always; "wall_clock_breakdown": true in the DeepSpeed JSON '
    "times its parts"
)

CHECKPOINTS = Topic(
    "Checkpoints",
    accepted=Names(both="--save --save-interval --load --no-load-optim --no-load-rng --finetune"),
    renamed=(Renamed("save_interval", Names(others="--save-steps")),),
    refused=(
        Refused(_WHOLE, Names(both="--no-save-optim --no-save-rng")),
        Refused(
            _ANY_LAYOUT,
            Names(
                both="--universal-checkpoint",
                others="--use-dist-ckpt --ckpt-format --dist-ckpt-format --auto-detect-ckpt-format "
                "--ckpt-fully-parallel-save --ckpt-fully-parallel-load --dist-ckpt-strictness",
            ),
        ),
        Refused("give --load-step N for the tag global_stepN", Names(microsoft="--load-tag")),
        Refused(
            "give --finetune, which begins at step 0 with new optimizer state",
            Names(bloom="--reset-progress", microsoft="--reset-iteration"),
        ),
        Refused(
            "give the model's options, or --config with the run_config.json beside the checkpoint",
            Names(microsoft="--use-checkpoint-args"),
        ),
        Refused(
            "leave it out: a checkpoint that isn't found always ends the run, unless --allow-fresh-start is given",
            Names(microsoft="--exit-on-missing-checkpoint"),
        ),
        Refused(
            _ASYNC,
            Names(
                microsoft="--checkpoint-io-buffer-size --checkpoint-data-parallel --aio-intra-op-parallelism "
                "--checkpoint-writer-decoupled"
            ),
        ),
    ),
    notes={
        "--load": "the forks' own checkpoints are converted first: `megatron-ds checkpoint import --from megatron` "
        "([megatron_checkpoints.md](megatron_checkpoints.md)). A folder without a checkpoint is an error; "
        "--allow-fresh-start is for a script that gives --load at its first start",
        "--save-interval": "need not be given: the last step is always saved",
        "--finetune": "takes the weights alone, as in the forks. For tasks there is finetune.py",
        "--no-load-optim": "steps and samples go on, as in the forks",
    },
)

REPORTS = Topic(
    "Reports",
    accepted=Names(both="--log-interval --tensorboard-dir", microsoft="--wandb-project --wandb-exp-name"),
    refused=(
        Refused("leave it out: --log-interval is for TensorBoard as well", Names(both="--tensorboard-log-interval")),
        Refused(
            _REPORTED,
            Names(
                both="--log-validation-ppl-to-tensorboard",
                microsoft="--log-memory-to-tensorboard",
                others="--log-throughput --log-learning-rate-to-tensorboard --log-loss-scale-to-tensorboard",
            ),
        ),
        Refused(
            _TIMED,
            Names(
                both="--log-timers-to-tensorboard",
                microsoft="--timing-log-level --timing-log-option --no-barrier-with-level-1-timing",
            ),
        ),
        Refused(
            "leave it out: it is written always, and can't be left out",
            Names(both="--no-log-learnig-rate-to-tensorboard --no-log-loss-scale-to-tensorboard"),
        ),
        Refused("leave it out: the batch is as large in all steps", Names(both="--log-batch-size-to-tensorboard")),
        Refused("leave it out: events are written at each logged step", Names(both="--tensorboard-queue-size")),
        Refused(
            "leave it out: run_config.json in --save has every option",
            Names(microsoft="--log-world-size-to-tensorboard", bloom="--log-path"),
        ),
        Refused(
            "leave it out: the norm of all gradients is reported; no other norm or state is",
            Names(both="--log-params-norm --log-num-zeros-in-grad", microsoft="--log-optimizer-states-to-tensorboard"),
        ),
        Refused("set the environment variable WANDB_DIR", Names(microsoft="--wandb-save-dir")),
        Refused(
            'not supported: "flops_profiler" in the DeepSpeed JSON measures a step',
            Names(microsoft="--profile --profile_steps --profile-ranks"),
        ),
        Refused("not supported: the energy of a run is not measured", Names(bloom="--codecarbon-dir")),
        Refused(
            "leave it out: the first process reports, and all of them report errors",
            Names(bloom="--log-level --log-level-replica"),
        ),
    ),
    notes={"--log-interval": "default 10, not 100; for TensorBoard and metrics.jsonl as well"},
)
