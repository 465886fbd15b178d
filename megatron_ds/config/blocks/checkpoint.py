"""Options of saving and loading."""

from __future__ import annotations

from megatron_ds.config.blocks.bounds import MOST_STEPS
from megatron_ds.config.option import OptionBlock, option


class CheckpointConfig(OptionBlock):
    """Where the run is saved and what it starts from."""

    save: str | None = option(None, "Folder for checkpoints, metrics.jsonl and the resolved configs.")
    load: str | None = option(
        None, "Folder of checkpoints to go on from, saved at any layout, or one checkpoint's own folder inside of it."
    )
    load_step: int | None = option(
        None, "Goes on from the checkpoint of this step, not from the one that `latest` names.", ge=0, le=MOST_STEPS
    )
    finetune: bool = option(
        False,
        "Takes the weights of --load only, and begins a new run with them: step 0, new optimizer state, the order of "
        "samples from its beginning.",
    )
    no_load_optim: bool = option(
        False, "Goes on from --load with new optimizer state (moments, loss scale); weights and progress are loaded."
    )
    no_load_rng: bool = option(
        False, "Goes on from --load with the dropout masks of a new run instead of those of the run's next steps."
    )
    override_lr_scheduler: bool = option(
        False,
        "Goes on from --load with this run's learning-rate schedule where it is not the checkpoint's.",
        aliases=("--override-opt-param-scheduler",),
    )
    use_checkpoint_lr_scheduler: bool = option(
        False,
        "Goes on from --load with the checkpoint's learning-rate schedule, whatever this run's options say.",
        aliases=("--use-checkpoint-opt-param-scheduler",),
    )
    save_interval: int | None = option(
        None, "Steps between checkpoints. The last step is always saved when --save is given.", ge=1, le=MOST_STEPS
    )
    async_save: bool = option(
        False,
        "Training goes on while a checkpoint is written, from a copy in host memory that is as large as the process's "
        "part of the checkpoint.",
    )
    keep_last: int | None = option(
        None,
        "Keeps this many of the newest checkpoints, and removes older ones; all stay when not given.",
        ge=1,
        le=MOST_STEPS,
    )
    keep_every: int | None = option(
        None, "With --keep-last: also keeps checkpoints at multiples of this many steps.", ge=1, le=MOST_STEPS
    )
    exit_interval: int | None = option(
        None, "Saves and ends the run at the next multiple of this many steps.", ge=1, le=MOST_STEPS
    )
    exit_duration_in_mins: float | None = option(
        None, "Saves and ends the run after the first step at which this many minutes have gone by.", gt=0, le=10**9
    )
    allow_data_change: bool = option(
        False,
        "Goes on from --load with other training data, another blend or another order, instead of stopping with an "
        "error: samples may then repeat or be left out.",
    )
    allow_fresh_start: bool = option(
        False, "Starts from step 0 when --load finds no checkpoint, instead of stopping with an error."
    )
