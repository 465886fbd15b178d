"""The ``megatron-ds`` command: one name, a subcommand for each tool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import megatron_ds
from megatron_ds.cli.errors import run_or_exit
from megatron_ds.utils.logging import set_up_logging


# Each command imports what it needs when it runs: tools that take half a second should not wait for others' modules.
def _preprocess(argv: Sequence[str]) -> None:
    from megatron_ds.cli import preprocess

    preprocess.main(argv)


def _merge_data(argv: Sequence[str]) -> None:
    from megatron_ds.cli import merge_data

    merge_data.main(argv)


def _data(argv: Sequence[str]) -> None:
    from megatron_ds.cli import data_tools

    data_tools.main(argv)


def _checkpoint(argv: Sequence[str]) -> None:
    from megatron_ds.cli import checkpoint_tools

    checkpoint_tools.main(argv)


def _generate(argv: Sequence[str]) -> None:
    from megatron_ds.cli import generate

    generate.main(argv)


def _evaluate(argv: Sequence[str]) -> None:
    from megatron_ds.cli import evaluate

    evaluate.main(argv)


_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "preprocess": (_preprocess, "turn texts into token files for training"),
    "merge-data": (_merge_data, "join token files into one pair"),
    "data": (_data, "inspect token files, show a step's samples, build sample indices"),
    "checkpoint": (_checkpoint, "inspect, verify, compare, merge and convert checkpoints"),
    "generate": (_generate, "go on with prompts, with a checkpoint's model"),
    "evaluate": (_evaluate, "score a checkpoint's model: LAMBADA, WikiText-103, validation sets, lm-eval tasks"),
}


def main() -> None:
    """Runs the subcommand that the command line names."""
    set_up_logging()
    run_or_exit(_run)


def _run() -> None:
    words = [_with_dashes(word) for word in sys.argv[1:]]
    if words and words[0].startswith("--local-rank="):
        del words[0]  # DeepSpeed's launcher writes it before all others; ranks come from the environment
    if words and words[0] in _COMMANDS:
        command, _ = _COMMANDS[words[0]]
        command(words[1:])
        return
    if words == ["--version"]:
        print(megatron_ds.__version__)
        return
    print(_usage())
    raise SystemExit(0 if words in ([], ["--help"], ["-h"]) else 2)


def _with_dashes(word: str) -> str:
    """``--json_keys`` is ``--json-keys``, as it is for the options of a run."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _usage() -> str:
    lines = [f"  {name:<12} {what}" for name, (_, what) in _COMMANDS.items()]
    return "\n".join(
        ["usage: megatron-ds COMMAND [options]", "", *lines, "", "megatron-ds COMMAND --help tells the options."]
    )
