"""Memory and parallel levers give the numbers of one process: each row trains 5 steps. Prints JSON lines.

    python -m benchmarks.levers             # recomputation of every kind, uneven stages, offload to host memory
    python -m benchmarks.levers --markdown  # as the table of docs/numerics.md

Compared as in `benchmarks.parity`, with one process that has none of the levers. The rows with offload compile
DeepSpeed's CPU Adam when they are first run. Exits with 1 when a row is out of tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace

from benchmarks.parity import expected_outcome, outcome_of, within_tolerance
from benchmarks.tiny_run import DOCUMENT_FLAGS, Case, Difference, difference, reference

_FULL = ("--recompute-granularity", "full")
_CHUNKS = (*_FULL, "--recompute-num-layers", "2")
_BLOCK = (*_FULL, "--recompute-method", "block", "--recompute-num-layers", "1")
_CUT = (*_FULL, "--distribute-saved-activations")
_CORE = ("--recompute-granularity", "selective")


def _json(**zero: object) -> str:
    # At this size ZeRO-3 would leave all parameters whole.
    if zero["stage"] == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    return json.dumps({"zero_optimization": zero})


_SHARDED = _json(stage=3)
_CPU = {"device": "cpu"}
_OPTIMIZER = _json(stage=2, offload_optimizer=_CPU)
_ALL = _json(stage=3, offload_optimizer=_CPU, offload_param=_CPU)


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        lever: in words, for the table.
        plain: the configuration without it.
        flags: what turns the lever on.
        deepspeed_json: the same, for what has no flag.
    """

    lever: str
    plain: Case
    flags: tuple[str, ...] = ()
    deepspeed_json: str = ""

    @property
    def case(self) -> Case:
        """The configuration with the lever."""
        return replace(self.plain, more=(*self.plain.more, *self.flags), deepspeed_json=self.deepspeed_json)


def _stages(method: str, plain: Case) -> Row:
    return Row(f"stages `{method}`", plain, ("--pp-partition-method", method))


LEVER_ROWS = (
    Row("full, chunks of 2", Case(2, 1, 1, 0, "fp32", True, 4), _CHUNKS),
    Row("full, chunks of 2", Case(1, 1, 2, 2, "fp32", False, 2), _CHUNKS),
    Row("full, chunks of 2", Case(1, 1, 2, 3, "bf16", True, 2), _CHUNKS, _SHARDED),
    Row("full, 1 layer of each stage", Case(1, 2, 1, 1, "fp32", True, 2), _BLOCK),
    Row("full, inputs cut over TP", Case(2, 1, 1, 1, "bf16", True, 2), _CUT),
    Row("full, inputs cut over TP", Case(2, 1, 1, 3, "fp32", True, 2), _CUT, _SHARDED),
    Row("full, inputs cut over TP, documents", Case(2, 2, 1, 1, "fp32", True, 1, more=DOCUMENT_FLAGS), _CUT),
    Row("selective", Case(2, 1, 1, 0, "fp32", True, 4), _CORE),
    Row("selective", Case(1, 2, 1, 1, "bf16", False, 2), _CORE),
    Row("selective, documents", Case(1, 1, 2, 3, "fp32", True, 1, more=DOCUMENT_FLAGS), _CORE, _SHARDED),
    _stages("layers:1,3", Case(1, 2, 1, 0, "fp32", True, 2)),
    _stages("layers:0,4", Case(1, 2, 1, 1, "bf16", True, 1)),
    _stages("layers:3,1", Case(2, 2, 1, 1, "fp32", True, 2)),
    _stages("layers:4,0", Case(1, 2, 2, 1, "fp32", False, 1)),
    _stages("parameters", Case(1, 2, 1, 1, "fp32", True, 2)),
)
OFFLOAD_ROWS = (
    Row("optimizer on the CPU", Case(1, 1, 2, 2, "fp32", True, 2), (), _OPTIMIZER),
    Row("optimizer on the CPU", Case(1, 1, 2, 2, "bf16", True, 2), (), _OPTIMIZER),
    Row("optimizer, parameters on the CPU", Case(1, 1, 2, 3, "fp32", True, 2), (), _ALL),
    Row("optimizer, parameters on the CPU", Case(2, 1, 1, 3, "bf16", True, 2), (), _ALL),
)


def compare(row: Row) -> Difference:
    """How far a row is from one process."""
    return difference(outcome_of(row.case), expected_outcome(reference(row.plain)))


def _markdown_row(row: Row, found: Difference) -> str:
    case = row.plain
    cells = (
        row.lever,
        f"{case.tp}·{case.pp}·{case.dp}",
        case.zero,
        case.precision,
        "tied" if case.tied else "own",
        case.micro_batch_size,
        *(f"{value:.0e}" for value in (found.loss, found.norm, found.weights)),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    markdown = parser.parse_args().markdown
    if markdown:
        columns = ("lever", "TP·PP·DP", "ZeRO", "precision", "head", "micro-batch", "loss", "norm", "weights")
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    failed = 0
    for row in (*LEVER_ROWS, *OFFLOAD_ROWS):
        found = compare(row)
        passed = within_tolerance(found, row.plain.precision)
        failed += not passed
        if markdown:
            print(_markdown_row(row, found), flush=True)
        else:
            line = {**asdict(row), **asdict(found), "passed": passed, "facts": outcome_of(row.case).facts}
            print(json.dumps(line), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
