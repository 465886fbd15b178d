"""``megatron-ds checkpoint``: looks at checkpoints, checks them, and turns them into others. Needs no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from megatron_ds.utils.logging import logger

T = TypeVar("T")


def main(argv: Sequence[str]) -> None:
    """Runs the tool that the first word names.

    Raises:
        CheckpointError: a checkpoint is missing, damaged, or can't be turned into what is asked for.
        SystemExit: after help, when there is no such tool, or with code 1 where `diff` and `verify` find something.
    """
    commands: Mapping[str, tuple[Callable[[Sequence[str]], None], str]] = {
        "inspect": (_inspect, "layout, parameters, step, shapes, dtypes, sizes and files"),
        "diff": (_diff, "how two checkpoints differ, whatever their layouts"),
        "verify": (_verify, "every file and its hash, equal copies on tensor-parallel ranks, no NaN"),
        "merge": (_merge, "all shards to one .safetensors or .pt file"),
        "to-fp32": (_to_fp32, "the optimizer's fp32 weights to one .safetensors or .pt file"),
        "reshard": (_reshard, "a checkpoint for another tensor x pipeline layout, optimizer included"),
        "export": (_export, "a checkpoint for other programs: Hugging Face transformers, Megatron"),
        "import": (_import, "a checkpoint from weights of other programs"),
    }
    if argv and argv[0] in commands:
        commands[argv[0]][0](argv[1:])
        return
    lines = [f"  {name:<12} {what}" for name, (_, what) in commands.items()]
    usage = ["usage: megatron-ds checkpoint COMMAND [options]", "", *lines, ""]
    is_help = list(argv) in ([], ["--help"], ["-h"])
    print("\n".join([*usage, "megatron-ds checkpoint COMMAND --help tells the options."]))
    raise SystemExit(0 if is_help else 2)


def watched(what: str) -> Callable[[Iterable[T]], Iterable[T]]:
    """Goes over things with a progress bar on a terminal."""
    return lambda things: tqdm(things, desc=what, disable=None, file=sys.stderr, leave=False)


def parser_of(command: str, description: str, *, output: str | None = None) -> argparse.ArgumentParser:
    """The parser of a command that reads a checkpoint.

    Args:
        command: its name.
        description: what it does.
        output: what ``--output`` is; None where there is none.
    """
    parser = argparse.ArgumentParser(f"megatron-ds checkpoint {command}", description=description, allow_abbrev=False)
    parser.add_argument(
        "--input", type=Path, required=True, metavar="DIR", help="folder of a run, or of one checkpoint inside of it"
    )
    parser.add_argument("--step", type=int, metavar="N", help="which of the run's checkpoints; else the last one")
    if output is not None:
        parser.add_argument("--output", type=Path, required=True, metavar="PATH", help=output)
    return parser


def _inspect(argv: Sequence[str]) -> None:
    parser = parser_of("inspect", "Says what a checkpoint holds.")
    parser.add_argument("--files", action="store_true", help="a line for each file")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args(argv)
    from megatron_ds.checkpoint.describe import description, report
    from megatron_ds.checkpoint.reader import open_checkpoint

    checkpoint = open_checkpoint(arguments.input, arguments.step)
    if arguments.json:
        print(json.dumps(description(checkpoint)))
    else:
        print("\n".join(report(checkpoint, files=arguments.files)))


def _diff(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        "megatron-ds checkpoint diff",
        description="Says how two checkpoints differ. Code 0 where they hold the same to the bit, 1 where not.",
        allow_abbrev=False,
    )
    parser.add_argument("first", type=Path, metavar="A", help="folder of a run (its last step), or DIR/global_step<N>")
    parser.add_argument("second", type=Path, metavar="B", help="the same")
    parser.add_argument("--all", action="store_true", help="a line for each parameter, not one for those of all layers")
    arguments = parser.parse_args(argv)
    from megatron_ds.checkpoint.compare import differences
    from megatron_ds.checkpoint.reader import open_checkpoint

    first, second = open_checkpoint(arguments.first), open_checkpoint(arguments.second)
    lines = list(differences(first, second, watched("compared"), every=arguments.all))
    print("\n".join(lines or ["both hold the same, to the bit"]))
    raise SystemExit(1 if lines else 0)


def _verify(argv: Sequence[str]) -> None:
    parser = parser_of("verify", "Checks a checkpoint. Code 0 where it is whole, 1 where something is wrong.")
    arguments = parser.parse_args(argv)
    from megatron_ds.checkpoint.reader import open_checkpoint
    from megatron_ds.checkpoint.verify import verify

    checkpoint = open_checkpoint(arguments.input, arguments.step)
    findings = list(verify(checkpoint, watched("verified")))
    whole = (
        f"{checkpoint.folder}: {len(checkpoint.manifest.files)} files, whole and unchanged; no NaN; copies are equal"
    )
    print("\n".join(findings or [whole]))
    raise SystemExit(1 if findings else 0)


def _merge(argv: Sequence[str]) -> None:
    parser = parser_of(
        "merge",
        "Puts the shards of all tensor-parallel ranks and pipeline stages together: one file with whole weights under "
        "their canonical names, without vocabulary padding.",
        output="the file: .safetensors, or .pt for torch.load",
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="of the file; else as trained")
    _write_one_file(parser.parse_args(argv), "weights")


def _to_fp32(argv: Sequence[str]) -> None:
    parser = parser_of(
        "to-fp32",
        "Writes the fp32 weights that the optimizer keeps (ZeRO 0 to 3) to one file, under their canonical names.",
        output="the file: .safetensors, or .pt for torch.load",
    )
    _write_one_file(parser.parse_args([*argv]), "fp32")


def _write_one_file(arguments: argparse.Namespace, kind: Any) -> None:
    from megatron_ds.checkpoint.apart import check_apart
    from megatron_ds.checkpoint.one_file import write_one_file
    from megatron_ds.checkpoint.reader import open_checkpoint
    from megatron_ds.models.dtypes import COMPUTE_DTYPES

    checkpoint = open_checkpoint(arguments.input, arguments.step)
    check_apart(arguments.output, checkpoint.folder)
    if kind == "fp32" and not checkpoint.has_optimizer:
        logger.warning("%s has no optimizer state: its weights are taken as they are", checkpoint.folder)
    manifest = checkpoint.manifest
    weights = checkpoint.weights(kind)
    write_one_file(
        arguments.output,
        weights,
        dtype=COMPUTE_DTYPES.get("fp32" if kind == "fp32" else arguments.dtype),
        metadata={"model": json.dumps(manifest.model), "step": str(manifest.progress["step"])},
        watch=watched("merged"),
    )
    size = arguments.output.stat().st_size
    logger.info("%s: %d parameters, %.1f MB", arguments.output, len(weights.specs), size / 1e6)


def _reshard(argv: Sequence[str]) -> None:
    parser = parser_of(
        "reshard",
        "Writes a checkpoint anew: its weights by layer, cut for another number of tensor-parallel ranks, and its "
        "optimizer by parameter, which fits every layout. Training needs no such step: --load takes any layout.",
        output="folder of a new run",
    )
    parser.add_argument("--target-tp", type=_count, default=1, metavar="N", help="tensor-parallel size (1)")
    parser.add_argument("--target-pp", type=_count, default=1, metavar="N", help="pipeline stages (1)")
    parser.add_argument("--weights-only", action="store_true", help="leave the optimizer out")
    arguments = parser.parse_args(argv)
    from megatron_ds.checkpoint.apart import check_apart
    from megatron_ds.checkpoint.reader import open_checkpoint
    from megatron_ds.checkpoint.write import MODEL_PRESET_NAME, TrainingState, write_checkpoint

    checkpoint = open_checkpoint(arguments.input, arguments.step)
    check_apart(arguments.output, checkpoint.folder)
    manifest = checkpoint.manifest
    state = TrainingState(checkpoint.read, manifest.progress, manifest.training_order, manifest.loss_scaler)
    folder = write_checkpoint(
        arguments.output,
        checkpoint.weights(),
        options=manifest.options,
        precision=manifest.layout.precision,
        tp_size=arguments.target_tp,
        pp_size=arguments.target_pp,
        state=None if arguments.weights_only or not checkpoint.has_optimizer else state,
        watch=watched("layers"),
    )
    logger.info("%s: TP%d x PP%d", folder, arguments.target_tp, arguments.target_pp)
    logger.info("%s: its model, for --model-preset", arguments.output / MODEL_PRESET_NAME)


def _export(argv: Sequence[str]) -> None:
    from megatron_ds.cli import checkpoint_export

    checkpoint_export.main(argv)


def _import(argv: Sequence[str]) -> None:
    from megatron_ds.cli import checkpoint_import

    checkpoint_import.main(argv)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not at least 1")
    return count
