"""Runs that go on at another layout, beside the same runs at their own: losses, and every number of the checkpoint.

    python -m benchmarks.relayout --markdown     # the compatibility matrix of docs/checkpoints.md

A run trains 2 steps, saves, and trains 5 more. Another one, at another layout, loads that checkpoint, saves it again,
and trains the same 5 steps. What the two checkpoints hold must be equal to the bit; losses and the optimizer's moments
after the 5 steps must be those of the first run. The data are a function of the step alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.tiny_run import MODELS, Case, TinyRun
from megatron_ds.checkpoint.reader import CheckpointReader, open_checkpoint
from megatron_ds.checkpoint.zero_pieces import MOMENTS, STATES
from tests.dist.pool import Device, run_ranks

STOP, STEPS = 2, 5

LLAMA = Case(more=MODELS["Llama 3.1"], tied=False)
BLOOM = Case(more=MODELS["BLOOM"])
QWEN = Case(more=MODELS["Qwen"])
BLOOM_12 = replace(BLOOM, global_batch_size=12)

FULL = replace(LLAMA, tp=2, pp=2, dp=2, zero=1)
TIED = replace(BLOOM, tp=2, pp=2, zero=0)
STAGE_2 = replace(BLOOM_12, dp=3, zero=2)
STAGE_3 = replace(QWEN, tp=2, dp=2, zero=3)
BF16 = replace(LLAMA, tp=2, pp=2, zero=1, precision="bf16")
BF16_STAGE_3 = replace(BLOOM, dp=2, zero=3, precision="bf16")

# From and to every ZeRO stage, both engines, fewer and more ranks; no row that another one implies.
CHANGES: tuple[tuple[Case, Case], ...] = (
    (FULL, replace(LLAMA, zero=0)),
    (FULL, replace(LLAMA, tp=4, zero=1)),
    (FULL, replace(LLAMA, pp=4, zero=1)),
    (FULL, replace(LLAMA, dp=4, zero=2)),
    (FULL, replace(LLAMA, dp=4, zero=3)),
    (FULL, replace(LLAMA, tp=2, dp=2, zero=1)),
    (TIED, replace(BLOOM, pp=3, zero=1)),
    (TIED, replace(BLOOM, dp=2, zero=3)),
    (STAGE_2, replace(BLOOM_12, tp=2, pp=2, zero=0)),
    (STAGE_2, replace(BLOOM_12, dp=2, zero=3)),
    (STAGE_3, replace(QWEN, tp=4, pp=2, zero=1)),
    (STAGE_3, replace(QWEN, dp=4, zero=3)),
    (BF16, replace(LLAMA, dp=2, zero=2, precision="bf16")),
    (BF16, replace(LLAMA, tp=4, zero=3, precision="bf16")),
    (BF16_STAGE_3, replace(BLOOM, tp=2, pp=2, zero=1, precision="bf16")),
)
MODEL_OF = {LLAMA.more: "Llama", BLOOM.more: "BLOOM", QWEN.more: "Qwen"}


@dataclass(frozen=True)
class Part:
    """What one run came to.

    Attributes:
        folder: of its checkpoint after `STOP` steps; the one after the last step is in ``end`` inside of it.
        facts: what was in force.
        losses: of the steps after the checkpoint.
        norms: of their gradients.
    """

    folder: Path
    facts: dict[str, Any]
    losses: list[float]
    norms: list[float]


@dataclass(frozen=True)
class Change:
    """A run beside the one that went on at another layout.

    Attributes:
        straight: the run.
        moved: the one at another layout.
        differing: names of states that are not equal to the bit in the two checkpoints.
        loss_difference: largest relative difference of losses.
        norm_difference: the same of gradient norms.
        moment_difference: largest difference of a moment after the last step, relative to the largest number of it.
    """

    straight: Part
    moved: Part
    differing: list[str]
    loss_difference: float
    norm_difference: float
    moment_difference: float


def _go_on(tiny: TinyRun, folder: Path) -> tuple[dict[str, Any], list[float], list[float]]:
    results = [tiny.train_step(step) for step in range(STOP, STOP + STEPS)]
    tiny.save(folder / "end")
    facts = {**tiny.facts(), "step": tiny.engine.progress.step, "loss_scales": [each.loss_scale for each in results]}
    return facts, [float(result.loss) for result in results], [result.grad_norm for result in results]


def train(case: Case, folder: Path) -> tuple[dict[str, Any], list[float], list[float]]:
    """Trains, saves and goes on. On each rank."""
    tiny = TinyRun(case)
    for step in range(STOP):
        tiny.train_step(step)
    tiny.save(folder)
    return _go_on(tiny, folder)


def go_on(case: Case, folder: Path, again: Path) -> tuple[dict[str, Any], list[float], list[float]]:
    """Loads, saves and goes on. On each rank."""
    tiny = TinyRun(case)
    tiny.load(folder)
    tiny.save(again)
    return _go_on(tiny, again)


def straight_part(case: Case, folder: Path, device: Device = "cpu") -> Part:
    """The run at its own layout."""
    return Part(folder, *run_ranks(case.world_size, train, device=device, case=case, folder=folder)[0])


def compare(straight: Part, after: Case, folder: Path, device: Device = "cpu") -> Change:
    """Lets a run go on at the layout of `after`.

    Args:
        straight: the run.
        after: the other layout.
        folder: an empty one.
        device: where both run.
    """
    results = run_ranks(after.world_size, go_on, device=device, case=after, folder=straight.folder, again=folder)
    moved = Part(folder, *results[0])
    first, second = open_checkpoint(straight.folder), open_checkpoint(folder)
    ends = open_checkpoint(straight.folder / "end"), open_checkpoint(folder / "end")
    return Change(
        straight,
        moved,
        list(_differing(first, second)),
        _largest(moved.losses, straight.losses),
        _largest(moved.norms, straight.norms),
        max(_distance(*ends, name) for name in first.specs),
    )


def _differing(first: CheckpointReader, second: CheckpointReader) -> Iterator[str]:
    for name in first.specs:
        for kind in ("weights", *STATES):
            if not torch.equal(first.read(name, kind), second.read(name, kind)):
                yield f"{kind} of {name}"


def _largest(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def _distance(first: CheckpointReader, second: CheckpointReader, name: str) -> float:
    pairs = [(first.read(name, kind), second.read(name, kind)) for kind in MOMENTS]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in pairs)


def layout_of(case: Case) -> str:
    """A case's layout in a few letters."""
    return f"TP{case.tp}·PP{case.pp}·DP{case.dp} ZeRO-{case.zero}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    options = parser.parse_args()
    columns = (
        "model",
        "precision",
        "saved at",
        "goes on at",
        "checkpoint",
        "next 5 losses",
        "gradient norms",
        "moments",
    )
    if options.markdown:
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        parts: dict[Case, Part] = {}
        for number, (before, after) in enumerate(CHANGES):
            if before not in parts:
                parts[before] = straight_part(before, Path(root) / f"from{number}")
            change = compare(parts[before], after, Path(root) / f"to{number}")
            failed += bool(change.differing)
            same = f"{len(change.differing)} states differ" if change.differing else "equal to the bit"
            numbers = [f"{x:.1e}" for x in (change.loss_difference, change.norm_difference, change.moment_difference)]
            cells = (MODEL_OF[before.more], before.precision, layout_of(before), layout_of(after), same, *numbers)
            if options.markdown:
                print("| " + " | ".join(cells) + " |", flush=True)
            else:
                print(json.dumps(dict(zip(columns, cells, strict=True))), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
