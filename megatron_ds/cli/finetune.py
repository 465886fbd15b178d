"""``finetune.py``: from the command line to `megatron_ds.tasks.finetune`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from megatron_ds.checkpoint.find import best_step, find_checkpoint
from megatron_ds.cli.errors import report_before_launch, run_or_exit
from megatron_ds.cli.finetune_plan import plan_finetuning
from megatron_ds.cli.pretrain import folder_of, print_what_is_known
from megatron_ds.config import describe
from megatron_ds.errors import MegatronDsError
from megatron_ds.utils.logging import logger, set_up_logging


def main(argv: Sequence[str] | None = None) -> None:
    """Finetunes a model on a task. Every process that the launcher starts calls this.

    Args:
        argv: the words after the program's name; the process's own by default.
    """
    set_up_logging()
    words = list(sys.argv[1:] if argv is None else argv)
    run_or_exit(lambda: _finetune(words))


def _finetune(argv: Sequence[str]) -> None:
    try:
        plan = plan_finetuning(argv, os.environ)
    except MegatronDsError as error:
        print_what_is_known(argv)
        report_before_launch(error)
    resolved, found = plan.resolved, plan.found
    if resolved.print_config:
        logger.info(describe(resolved))
        return
    for note in (*resolved.notes, *plan.notes):
        logger.info("%s", note)
    with folder_of(resolved, found) as lock:
        from megatron_ds.engine.failure import failing_together
        from megatron_ds.training.run import run_training

        with failing_together():
            run_training(resolved, plan.job, found, lock)
    _tell_the_best(resolved.run.checkpoint.save)


def _tell_the_best(save: str | None) -> None:
    best = None if save is None else best_step(Path(save))
    if best is not None:
        found = find_checkpoint(Path(str(save)), best)
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in found.manifest.metrics.items())
        logger.info("best checkpoint: %s (%s)", found.folder / found.tag, metrics)
