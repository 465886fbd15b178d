"""Options of reports."""

from __future__ import annotations

from megatron_ds.config.blocks.bounds import MOST_STEPS
from megatron_ds.config.option import OptionBlock, option


class LoggingConfig(OptionBlock):
    """What is reported and where."""

    log_interval: int = option(10, "Steps between log lines and lines of metrics.jsonl.", ge=1, le=MOST_STEPS)
    tensorboard_dir: str | None = option(None, "Also writes TensorBoard events here ([tensorboard] extra).")
    wandb_project: str | None = option(None, "Also logs to this Weights & Biases project ([wandb] extra).")
    wandb_exp_name: str | None = option(None, "Name of the Weights & Biases run.")
