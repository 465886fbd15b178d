"""``megatron-ds evaluate``: what a checkpoint's model scores on a task."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import megatron_ds
from megatron_ds.cli.errors import report_before_launch
from megatron_ds.cli.evaluate_options import parser
from megatron_ds.cli.evaluate_plan import plan_evaluation
from megatron_ds.cli.inference import refuse_existing
from megatron_ds.cli.other_flags import refuse_other_flags
from megatron_ds.cli.task_progress import task_progress
from megatron_ds.errors import DataError, MegatronDsError, Problem
from megatron_ds.tasks.zeroshot.results import TaskResult, table
from megatron_ds.utils.logging import logger


def main(argv: Sequence[str]) -> None:
    """Evaluates a model, shows the numbers, and writes them to a file where one is asked for.

    Args:
        argv: the command line after ``megatron-ds evaluate``.

    Raises:
        MegatronDsError: after the start. What can be known before ends the process here.
        SystemExit: after ``--help``, or for what was wrong before the start.
    """
    try:
        command = parser()
        refuse_other_flags(command, argv)
        arguments = command.parse_args(argv)
        plan = plan_evaluation(arguments, os.environ)
        output: Path | None = arguments.output
        speaks = os.environ.get("RANK", "0") == "0"
        if speaks:
            refuse_existing(output)
    except MegatronDsError as error:
        report_before_launch(error)
    for note in plan.notes:
        logger.info("%s", note)
    # Torch takes seconds to import, so everything above does without it.
    from megatron_ds.engine.failure import failing_together
    from megatron_ds.tasks.zeroshot.run import run_evaluation

    with failing_together():
        results = run_evaluation(plan.job, task_progress)
        if not speaks:
            return
        for line in table(results):
            logger.info("%s", line)
        if output is not None:
            _write(output, plan.described, results)
            logger.info("wrote %s", output)


def _write(output: Path, described: Mapping[str, Any], results: Sequence[TaskResult]) -> None:
    records = [
        {
            "name": result.name,
            "metrics": {name: value if math.isfinite(value) else None for name, value in result.metrics.items()},
            "num_examples": result.num_examples,
            "num_tokens": result.num_tokens,
        }
        for result in results
    ]
    content = {**described, "results": records, "megatron_ds_version": megatron_ds.__version__}
    try:
        output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(Problem(f"{output} can't be written: {error}", advice="give another --output")) from error
