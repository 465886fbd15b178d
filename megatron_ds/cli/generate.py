"""``megatron-ds generate``: texts that a checkpoint's model goes on with."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron_ds.cli.errors import report_before_launch
from megatron_ds.cli.generate_plan import Plan, plan_generation
from megatron_ds.cli.inference import add_batch_size, add_load_options, add_model_options, refuse_existing
from megatron_ds.cli.numbers import above_zero, at_least_one, at_least_zero, share
from megatron_ds.cli.option_flags import ToolParser
from megatron_ds.errors import DataError, MegatronDsError, Problem
from megatron_ds.generation.options import Completion
from megatron_ds.generation.texts import new_text
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted

_DESCRIPTION = (
    "Goes on with prompts. One process by default; under torchrun or deepspeed, processes beyond TP x PP are replicas "
    "of the model that share the prompts. The layout need not be the one of training."
)


def main(argv: Sequence[str]) -> None:
    """Generates texts, shows them, and writes them to a file where one is asked for.

    Args:
        argv: the command line after ``megatron-ds generate``.

    Raises:
        MegatronDsError: after the start. What can be known before ends the process here.
        SystemExit: after ``--help``, or for what was wrong before the start.
    """
    try:
        arguments = parser().parse_args(argv)
        plan = plan_generation(arguments, os.environ)
        output: Path | None = arguments.output
        writes = os.environ.get("RANK", "0") == "0"
        if writes:
            refuse_existing(output)
    except MegatronDsError as error:
        report_before_launch(error)
    for note in plan.notes:
        logger.info("%s", note)
    # Torch takes seconds to import, so everything above does without it.
    from megatron_ds.engine.failure import failing_together
    from megatron_ds.generation.run import run_job

    with failing_together():
        if output is not None and writes:
            with _file_errors(output):
                output.write_text("")
        run_job(plan.job, lambda completion: _show(completion, plan, output))
    if output is not None:
        logger.info("wrote %s", output)


def _show(completion: Completion, plan: Plan, output: Path | None) -> None:
    request = completion.request
    prompt, text = plan.prompts[request.prompt], new_text(completion, plan.tokenizer)
    sample = f", sample {request.sample}" if plan.num_samples > 1 else ""
    end = "end of document" if completion.is_ended else "length"
    count = counted(len(completion.tokens), "new token")
    logger.info("--- index %d%s: %s, ended by %s", request.prompt, sample, count, end)
    logger.info("%s%s", prompt, text)
    if output is not None:
        record = {
            "index": request.prompt,
            "sample": request.sample,
            "prompt": prompt,
            "text": text,
            "tokens": completion.tokens,
            "stop": "eod" if completion.is_ended else "length",
        }
        _write_line(output, record)


def _write_line(output: Path, record: dict[str, Any]) -> None:
    """Adds a text to the file. It is there when the next one is made."""
    with _file_errors(output), output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


@contextmanager
def _file_errors(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(Problem(f"{output} can't be written: {error}", advice="give another --output")) from error


def parser() -> ToolParser:
    """The options of the command."""
    command = ToolParser("megatron-ds generate", description=_DESCRIPTION, allow_abbrev=False)
    add_load_options(command)
    prompts = command.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", nargs="+", metavar="TEXT", help='one or more prompts; "" begins a new document')
    prompts.add_argument(
        "--prompts-file",
        type=Path,
        metavar="FILE",
        help='a prompt on each line; in a .jsonl, each line is "text" or {"prompt": "text"}',
    )
    command.add_argument(
        "--output", type=Path, metavar="FILE", help="writes a JSON object for each text to this new file"
    )
    command.add_argument(
        "--max-new-tokens",
        type=at_least_one,
        metavar="N",
        help="new tokens of a text (64, or fewer where the model has learned positions and no more of them are left)",
    )
    add_batch_size(command)
    command.add_argument(
        "--allow-special-tokens",
        action="store_true",
        help="give the string of a special token in a prompt its one id; otherwise it is plain text",
    )
    _add_sampling(command.add_argument_group("choice of tokens"))
    add_model_options(command)
    return command


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--greedy", action="store_true", help="always the likeliest token, as without what follows")
    group.add_argument("--temperature", type=above_zero, metavar="T", help="draw tokens, from softmax(scores / T) (1)")
    group.add_argument("--top-k", type=at_least_one, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument(
        "--top-p",
        type=share,
        metavar="P",
        help="draw from the fewest likeliest tokens that have a probability of P together",
    )
    group.add_argument(
        "--seed", type=at_least_zero, metavar="N", help="of what is drawn (1234); a text follows from it at any layout"
    )
    group.add_argument(
        "--num-samples", type=at_least_one, default=1, metavar="N", help="texts of each prompt, all of them drawn (1)"
    )
