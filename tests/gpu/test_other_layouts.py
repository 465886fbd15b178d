"""Going on at another ZeRO stage on a GPU: fused AdamW counts its updates on the device, fp16 has a loss scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.relayout import BLOOM, LLAMA, STEPS, compare, straight_part
from benchmarks.tiny_run import Case

FP16 = replace(LLAMA, precision="fp16", more=(*LLAMA.more, "--initial-loss-scale", "4096", "--loss-scale-window", "3"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("case", "before", "after"),
    [
        (LLAMA, 0, 1),
        (LLAMA, 2, 3),
        (replace(LLAMA, precision="bf16"), 1, 3),
        (replace(BLOOM, precision="bf16"), 3, 2),
        (FP16, 1, 2),
    ],
)
def test_run_goes_on_at_another_zero_stage(case: Case, before: int, after: int, tmp_path: Path) -> None:
    straight = straight_part(replace(case, zero=before), tmp_path / "straight", "cuda")
    change = compare(straight, replace(case, zero=after), tmp_path / "moved", "cuda")
    assert (straight.facts["zero"], change.moved.facts["zero"]) == (before, after)
    assert change.moved.facts["fused"]
    assert change.differing == []
    assert change.loss_difference <= (1e-5 if case.precision == "fp32" else 2e-2)
    if case.precision == "fp16":
        scales = straight.facts["loss_scales"]
        # It doubles in the middle: a count that began anew would do so later.
        assert len(set(scales)) > 1
        assert change.moved.facts["loss_scales"] == scales
    assert len(straight.losses) == STEPS
