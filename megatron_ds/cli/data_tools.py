"""``megatron-ds data inspect | show | build-index``: what token files hold, and what a run makes of them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from megatron_ds.cli.data_run import find_run
from megatron_ds.data.build import build_indices, log_plans, plan_datasets
from megatron_ds.data.describe import describe, report
from megatron_ds.data.families import run_samples
from megatron_ds.data.samples import samples_needed
from megatron_ds.data.show import Step, show_step
from megatron_ds.tokenizers import build_tokenizer
from megatron_ds.utils.logging import logger

_RUN_OPTIONS = (
    "The run is given by --run, a folder that --save wrote, or by its own options (--deepspeed_config, --data-path, "
    "--tokenizer-type …), which also stand over those of --run."
)


def main(argv: Sequence[str]) -> None:
    """Runs the tool that the first word names.

    Raises:
        ConfigError: an option is wrong.
        DataError: a file is missing or broken.
        SystemExit: after help, or when there is no such tool.
    """
    commands: Mapping[str, tuple[Callable[[Sequence[str]], None], str]] = {
        "inspect": (_inspect, "documents, tokens and lengths of token files"),
        "show": (_show, "the text of the samples that a step of a run is trained on"),
        "build-index": (_build_index, "build the sample indices of a run before it starts"),
    }
    if argv and argv[0] in commands:
        commands[argv[0]][0](argv[1:])
        return
    lines = [f"  {name:<12} {what}" for name, (_, what) in commands.items()]
    usage = ["usage: megatron-ds data COMMAND [options]", "", *lines, ""]
    is_help = list(argv) in ([], ["--help"], ["-h"])
    print("\n".join([*usage, "megatron-ds data COMMAND --help tells the options."]))
    raise SystemExit(0 if is_help else 2)


def _inspect(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        "megatron-ds data inspect", description="Says what token files hold. Reads all of their index, and their ids."
    )
    parser.add_argument("prefix", nargs="+", metavar="PREFIX", help="paths without .bin and .idx")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")
    arguments = parser.parse_args(argv)
    for prefix in arguments.prefix:
        description = describe(prefix)
        print(description.to_json() if arguments.json else report(description))


def _run_parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        f"megatron-ds data {name}", description=f"{description} {_RUN_OPTIONS}", allow_abbrev=False
    )
    parser.add_argument("--run", type=Path, metavar="DIR", help="folder of a run: what --save wrote")
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="processes of the run, where its batch size follows from that (WORLD_SIZE, else of --run, else TP x PP)",
    )
    return parser


def _show(argv: Sequence[str]) -> None:
    parser = _run_parser("show", "Prints the samples of one step: where they are from, and their text.")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="number of the step, from 1")
    parser.add_argument("--samples", type=_count, metavar="K", help="show the first K samples of the step only")
    arguments, words = parser.parse_known_args(argv)
    tool = find_run(arguments.run, words, os.environ, arguments.world_size, arguments.step)
    run = tool.run
    assert tool.consumed_samples is not None, "a step was asked for"
    tokenizer = None
    if run.data.tokenizer_type is not None:
        tokenizer = build_tokenizer(run.data, vocab_size=run.model.vocab_size)
    step = Step(arguments.step, tool.consumed_samples, run.global_batch_size, tool.is_known)
    for line in show_step(run, step, tokenizer, most_samples=arguments.samples):
        sys.stdout.write(line + "\n")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _build_index(argv: Sequence[str]) -> None:
    parser = _run_parser("build-index", "Builds the sample indices that a run will need, and that are not there yet.")
    arguments, words = parser.parse_known_args(argv)
    start = time.perf_counter()
    run = find_run(arguments.run, words, os.environ, arguments.world_size).run
    samples = samples_needed(run)
    kind = run_samples(run)
    plans = plan_datasets(run.data, kind, seed=run.training.seed, samples=samples)
    num_built = build_indices(plans, kind, run.data.data_cache_path)
    log_plans(plans, kind, run.data, samples)
    num_parts = sum(part.key is not None for plan in plans for part in plan.parts)
    seconds = time.perf_counter() - start
    logger.info("indices: %d built, %d were there; %.1f s", num_built, num_parts - num_built, seconds)
