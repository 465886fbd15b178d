"""The options of ``megatron-ds evaluate``."""

from __future__ import annotations

from pathlib import Path

from megatron_ds.cli.inference import add_batch_size, add_load_options, add_model_options
from megatron_ds.cli.numbers import at_least_one, at_least_zero
from megatron_ds.cli.option_flags import ToolParser, add_option
from megatron_ds.config.blocks import GLUE_TASKS

LAMBADA, WIKITEXT103, VALIDATION = "LAMBADA", "WIKITEXT103", "VALIDATION"
HARNESS_PREFIX = "lm_eval:"
FINETUNED = (*GLUE_TASKS, "RACE")
# Tokens that a window of WikiText moves on by, as in Megatron's task.
DEFAULT_OVERLAPPING_EVAL = 32

_DESCRIPTION = (
    "Evaluates a model without training it. One process by default; under torchrun or deepspeed, processes "
    "beyond TP x PP are replicas of the model that share the work. The layout need not be the one of training."
)


def parser() -> ToolParser:
    """The options of the command."""
    command = ToolParser("megatron-ds evaluate", description=_DESCRIPTION, allow_abbrev=False)
    add_load_options(command)
    command.add_argument(
        "--task",
        nargs="+",
        required=True,
        metavar="TASK",
        help=f"{LAMBADA}, {WIKITEXT103}, {VALIDATION}, {HARNESS_PREFIX}NAME for tasks of lm-evaluation-harness, or "
        f"what a BERT was finetuned on: {', '.join(FINETUNED)}",
    )
    command.add_argument("--output", type=Path, metavar="FILE", help="writes the numbers to this new JSON file")
    add_batch_size(command)
    command.add_argument(
        "--seq-length",
        type=at_least_one,
        metavar="N",
        help="tokens that the model sees at once, where it is asked about texts (those of training)",
    )
    _add_text_tasks(command)
    _add_validation(command)
    _add_harness(command)
    add_model_options(command)
    return command


def _add_text_tasks(command: ToolParser) -> None:
    group = command.add_argument_group(f"{LAMBADA}, {WIKITEXT103} and tasks of finetuning")
    group.add_argument(
        "--valid-data",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=f'{LAMBADA}: JSON lines {{"text": …}}; {WIKITEXT103}: the raw text, wiki.test.tokens; tasks of '
        "finetuning: one or more files, or folders of RACE",
    )
    group.add_argument(
        "--strict-lambada", action="store_true", help="asks for the whole last word; otherwise for the last token"
    )
    group.add_argument(
        "--overlapping-eval",
        type=at_least_one,
        metavar="N",
        help=f"{WIKITEXT103}: tokens scored by each window after the first ({DEFAULT_OVERLAPPING_EVAL})",
    )


def _add_validation(command: ToolParser) -> None:
    group = command.add_argument_group(f"{VALIDATION}: the run's own sets, or")
    group.add_argument(
        "--data-path",
        nargs="+",
        metavar="WORD",
        help="one prefix of .bin/.idx files, or weight/prefix pairs; all documents, where --split is not given",
    )
    group.add_argument("--split", metavar="SHARES", help="with --data-path: the second share is evaluated")
    add_option(group, "data.data_cache_path")
    group.add_argument(
        "--eval-samples",
        type=at_least_one,
        metavar="N",
        help="samples of each set (those of the run's evaluations: --eval-iters x global batch size)",
    )


def _add_harness(command: ToolParser) -> None:
    group = command.add_argument_group(f"{HARNESS_PREFIX}NAME")
    group.add_argument("--include-path", type=Path, metavar="DIR", help="folder with tasks of your own, as YAML")
    group.add_argument("--num-fewshot", type=at_least_zero, metavar="N", help="solved examples before each question")
    group.add_argument("--limit", type=at_least_one, metavar="N", help="first N examples of each task only")
