"""Every way to recompute gives the bits of keeping everything, at every layout (field report F2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.tiny_run import DOCUMENT_FLAGS, Case, Outcome, run_case
from tests.dist.pool import run_ranks

SEQUENCE_PARALLEL = "--sequence-parallel"
FULL = ("--recompute-granularity", "full")
# At this size all parameters would stay whole under ZeRO-3.
ALL_PARTITIONED = json.dumps(
    {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}}
)


@dataclass(frozen=True)
class _Lever:
    """Flags, and how often a layer and its core of attention then run in a training step of four layers.

    `layers` and `cores` are means over the layers; a stage of two layers counts for itself.
    """

    flags: tuple[str, ...]
    layers: float
    cores: float


LEVERS = (
    _Lever(("--checkpoint-activations",), 2, 2),
    _Lever((*FULL, "--recompute-num-layers", "2"), 2, 2),
    _Lever((*FULL, "--recompute-num-layers", "3", "--distribute-saved-activations"), 2, 2),
    _Lever((*FULL, "--distribute-saved-activations", "--checkpoint-in-cpu"), 2, 2),
    _Lever(("--recompute-granularity", "selective"), 1, 2),
)
BLOCK = (*FULL, "--recompute-method", "block", "--recompute-num-layers", "1")


def _with_core_runs(cases: Sequence[Case], steps: int) -> list[tuple[Outcome, float]]:
    """Outcomes, each with how often the core of attention ran for each layer of this rank and micro-batch."""
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention
    runs: list[bool] = []

    def counted(*tensors: Tensor, **options: Any) -> Tensor:
        runs.append(True)
        return attend(*tensors, **options)

    F.scaled_dot_product_attention = counted
    results = []
    for case in cases:
        runs.clear()
        outcome = run_case(case, steps, eval_before=())
        results.append((outcome, len(runs) / (case.num_layers // case.pp) / case.num_micro_batches / steps))
    return results


DROPPING = Case(dropout=0.5, micro_batch_size=2, global_batch_size=4)


@pytest.mark.parametrize(
    "case",
    [
        replace(DROPPING, zero=0),
        replace(DROPPING, tp=2, zero=0),
        replace(DROPPING, pp=2, zero=0),
        replace(DROPPING, dp=2, zero=1),
        replace(DROPPING, dp=2, zero=2),
        replace(DROPPING, dp=2, zero=3, deepspeed_json=ALL_PARTITIONED),
        replace(DROPPING, tp=2, zero=3, deepspeed_json=ALL_PARTITIONED),
        replace(DROPPING, tp=2, zero=1, precision="bf16", more=DOCUMENT_FLAGS),
        replace(DROPPING, pp=2, zero=1, more=DOCUMENT_FLAGS),
        replace(DROPPING, tp=2, pp=2, zero=1, more=DOCUMENT_FLAGS),
        replace(DROPPING, tp=2, zero=1, more=(*DOCUMENT_FLAGS, SEQUENCE_PARALLEL)),
        replace(DROPPING, tp=2, pp=2, zero=0, more=(SEQUENCE_PARALLEL,)),
    ],
    ids=lambda case: (
        f"tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}{'-docs' * (DOCUMENT_FLAGS[0] in case.more)}"
        f"{'-sequence' * (SEQUENCE_PARALLEL in case.more)}"
    ),
)
def test_any_recomputation_changes_no_bit(case: Case) -> None:
    per_stage = case.num_layers // case.pp
    # Under sequence parallelism a rank keeps a share as it is, and cutting it again is refused.
    is_cut = SEQUENCE_PARALLEL in case.more
    allowed = [lever for lever in LEVERS if not (is_cut and "--distribute-saved-activations" in lever.flags)]
    levers = (_Lever((), 1, 1), *allowed, _Lever(BLOCK, 1 + 1 / per_stage, 1 + 1 / per_stage))
    cases = [replace(case, more=(*case.more, *lever.flags)) for lever in levers]
    for results in run_ranks(case.world_size, _with_core_runs, cases=cases, steps=2, timeout=120):
        kept = results[0][0]
        assert (kept.facts["tp"], kept.facts["pp"], kept.facts["dp"]) == (case.tp, case.pp, case.dp)
        assert kept.facts["zero"] == case.zero
        for lever, (outcome, core_runs) in zip(levers, results, strict=True):
            assert outcome.facts["block_forwards"] == lever.layers, lever.flags
            assert core_runs == lever.cores, lever.flags
            assert (outcome.losses, outcome.norms) == (kept.losses, kept.norms), lever.flags
            assert outcome.weights.keys() == kept.weights.keys()
            for name, weight in kept.weights.items():
                assert torch.equal(outcome.weights[name], weight), (lever.flags, name)


def test_any_recomputation_trains_every_parameter() -> None:
    cases = [replace(DROPPING, zero=0, more=(*DOCUMENT_FLAGS, *lever.flags)) for lever in LEVERS]
    (results,) = run_ranks(1, _with_core_runs, cases=cases, steps=1)
    for outcome, _ in results:
        for name, weight in outcome.weights.items():
            assert not torch.equal(weight, outcome.initial_weights[name]), name
