"""fp16's dynamic loss scale on GPUs."""

from __future__ import annotations

import pytest
import torch

from benchmarks.tiny_run import Case
from tests.dist.pool import run_ranks
from tests.engine.fp16_scaling import MORE, assert_overflows_are_skipped, train_with_overflows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: fp16 is refused on CPU"),
]


@pytest.mark.parametrize(
    "case",
    [
        Case(precision="fp16", more=MORE),
        pytest.param(
            Case(pp=2, precision="fp16", more=MORE),
            marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
        ),
    ],
    ids=["one", "pp2"],
)
def test_overflow_skips_the_step_and_halves_the_scale(case: Case) -> None:
    for run in run_ranks(case.world_size, train_with_overflows, case=case, device="cuda"):
        assert_overflows_are_skipped(case, run)
