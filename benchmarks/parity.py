"""The same numbers at every layout: each row trains 5 steps and is compared with one process. Prints JSON lines.

    python -m benchmarks.parity             # a covering set of layouts and options, as the tests run it
    python -m benchmarks.parity --full      # every layout with every ZeRO stage and precision that is legal there
    python -m benchmarks.parity --documents # samples with several documents that don't see each other
    python -m benchmarks.parity --models    # models with every option of the architecture
    python -m benchmarks.parity --sequence  # sequence parallelism
    python -m benchmarks.parity --markdown  # as the table of docs/numerics.md

fp32 rows are compared with plain PyTorch in one process (no DeepSpeed, no micro-batches), bf16 rows with one bf16
process under ZeRO-1. Runs on CPU, in forked processes. Exits with 1 when a row is out of tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache

from benchmarks.parity_rows import COVERING_SET, DOCUMENT_SET, MODEL_SET, SEQUENCE_SET, full_set
from benchmarks.tiny_run import (
    MODELS,
    Case,
    Difference,
    Outcome,
    Precision,
    difference,
    reference,
    run_case,
    run_plain_pytorch,
)
from megatron_ds.config.blocks import DOCUMENT_OPTIONS
from tests.dist.pool import run_ranks

# Relative, of losses, norms and weights. fp32 sums in another order: some units in the last place. A bf16 number has
# 8 bits, so one rounding is up to 4e-3, and a layout decides which partial sums are rounded.
TOLERANCES: Mapping[Precision, float] = {"fp32": 1e-5, "bf16": 2e-2}


@cache
def expected_outcome(case: Case) -> Outcome:
    """What the one process comes to that `case` is compared with; runs once for all cases that share it."""
    one_process = reference(case)
    function = run_plain_pytorch if case.precision == "fp32" else run_case
    outcome: Outcome = run_ranks(1, function, case=one_process)[0]
    return outcome


@cache
def outcome_of(case: Case) -> Outcome:
    """What rank 0 of `case` comes to."""
    outcome: Outcome = run_ranks(case.world_size, run_case, case=case)[0]
    return outcome


def compare(case: Case) -> Difference:
    """How far `case` is from one process."""
    return difference(outcome_of(case), expected_outcome(reference(case)))


def within_tolerance(found: Difference, precision: Precision) -> bool:
    """Whether every number is near enough."""
    tolerance = TOLERANCES[precision]
    near = max(found.loss, found.norm, found.weights) <= tolerance
    return near and (found.weights_allclose or precision != "fp32")


_COLUMNS = ("TP·PP·DP", "ZeRO", "precision", "head", "micro-batch", "recompute", "optimizer", "loss", "norm", "weights")


def _markdown_row(case: Case, found: Difference, optimizer: str) -> str:
    model = [name for name, flags in MODELS.items() if case.more[: len(flags)] == flags]
    model += ["GPT"] if not model and "--sequence-parallel" in case.more else []
    switches = [word for word in case.more if word.removeprefix("--").replace("-", "_") in DOCUMENT_OPTIONS]
    cells = (
        *([model[0] + (", documents" if switches else "")] if model else []),
        *([f"`{switches[0]}`" if len(switches) == 1 else "all three"] if switches and not model else []),
        f"{case.tp}·{case.pp}·{case.dp}",
        case.zero,
        case.precision,
        "tied" if case.tied else "own",
        case.micro_batch_size,
        "on" if case.recompute else "off",
        optimizer.split(maxsplit=1)[0],
        *(f"{value:.0e}" for value in (found.loss, found.norm, found.weights)),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more rows")
    parser.add_argument(
        "--documents", action="store_true", help="the rows of --reset-position-ids and its like instead"
    )
    parser.add_argument("--models", action="store_true", help="the rows of models with other options instead")
    parser.add_argument("--sequence", action="store_true", help="the rows of --sequence-parallel instead")
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    options = parser.parse_args()
    if options.markdown:
        columns = (
            *(["model"] if options.models or options.sequence else ["switches"] if options.documents else []),
            *_COLUMNS,
        )
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    failed = 0
    rows = {"documents": DOCUMENT_SET, "models": MODEL_SET, "sequence": SEQUENCE_SET}
    chosen = [rows[name] for name in rows if getattr(options, name)] or [COVERING_SET]
    for case in full_set() if options.full else chosen[0]:
        found = compare(case)
        passed = within_tolerance(found, case.precision)
        failed += not passed
        facts = outcome_of(case).facts
        if options.markdown:
            print(_markdown_row(case, found, facts["optimizer"]), flush=True)
        else:
            row = {name: value for name, value in asdict(case).items() if name != "deepspeed_json"}
            print(json.dumps({**row, **asdict(found), "passed": passed, "facts": facts}), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
