"""A run goes on at any other layout as it would have at its own (field reports C7, C8, T2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.relayout import BF16, CHANGES, LLAMA, STEPS, STOP, Part, compare, straight_part
from benchmarks.tiny_run import Case
from megatron_ds.checkpoint.reader import open_checkpoint


class _Parts(dict[Case, Part]):
    """Runs at their own layouts: each is trained when it is asked for the first time."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, case: Case) -> Part:
        self[case] = straight_part(case, self._factory.mktemp("straight"))
        return self[case]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> _Parts:
    return _Parts(tmp_path_factory)


def _name(case: Case) -> str:
    return f"tp{case.tp}pp{case.pp}dp{case.dp}z{case.zero}{case.precision}"


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=[f"{_name(a)}-to-{_name(b)}" for a, b in CHANGES])
def test_run_goes_on_at_another_layout(before: Case, after: Case, parts: _Parts, tmp_path: Path) -> None:
    straight = parts[before]
    change = compare(straight, after, tmp_path)
    facts = change.moved.facts
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (after.tp, after.pp, after.dp, after.zero)
    assert facts["step"] == STOP + STEPS

    assert change.differing == []
    first, second = open_checkpoint(straight.folder), open_checkpoint(tmp_path)
    assert second.manifest.progress == first.manifest.progress
    assert second.manifest.layout != first.manifest.layout
    assert any(first.read(name, "exp_avg").any() for name in first.specs)

    tolerance = 1e-5 if before.precision == "fp32" else 2e-2
    assert change.loss_difference <= tolerance
    assert change.norm_difference <= 10 * tolerance  # a sum of squares over all parameters
    if before.precision == "fp32":
        assert change.moment_difference <= 1e-4  # five updates later


def test_run_of_another_precision_begins_with_the_optimizers_weights(parts: _Parts, tmp_path: Path) -> None:
    straight = parts[BF16]
    first = open_checkpoint(straight.folder)
    losses = []
    for zero in (0, 1, 3):
        change = compare(straight, replace(LLAMA, dp=2, zero=zero), tmp_path / str(zero))
        assert (change.moved.facts["zero"], change.moved.facts["parameter_dtype"]) == (zero, "float32")
        # Their own weights were rounded to bf16; the rest is equal to the bit.
        assert {name.split(" of ")[0] for name in change.differing} == {"weights"}
        second = open_checkpoint(tmp_path / str(zero))
        for name in first.specs:
            assert torch.equal(second.read(name), first.read(name, "fp32"))
        losses.append(change.moved.losses)
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)
