"""A run goes on at any other layout as it would have at its own (field reports C7, C8 and T2's kind)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tiny_run import MODELS, Case, TinyRun
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.zero_pieces import Kind
from tests.dist.pool import run_ranks

STOP, STEPS = 2, 5
KINDS: tuple[Kind, ...] = ("weights", "fp32", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and how its run went on.

    Attributes:
        folder: of the checkpoint.
        losses: of the steps after it.
        norms: of their gradients.
    """

    folder: Path
    losses: list[float]
    norms: list[float]


def _go_on(tiny: TinyRun) -> tuple[list[float], list[float]]:
    results = [tiny.train_step(step) for step in range(STOP, STOP + STEPS)]
    return [float(result.loss) for result in results], [result.grad_norm for result in results]


def _train(case: Case, folder: Path) -> tuple[list[float], list[float]]:
    tiny = TinyRun(case)
    for step in range(STOP):
        tiny.train_step(step)
    tiny.save(folder)
    losses_and_norms = _go_on(tiny)
    tiny.save(folder / "end")
    return losses_and_norms


def _resume(case: Case, folder: Path, again: Path) -> dict[str, Any]:
    tiny = TinyRun(case)
    tiny.load(folder)
    tiny.save(again)
    losses, norms = _go_on(tiny)
    tiny.save(again / "end")
    return {**tiny.facts(), "losses": losses, "norms": norms, "step": tiny.engine.progress.step}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Case, Saved]]:
    """Checkpoints that were made so far, by the case that made them."""
    made: dict[Case, Saved] = {}

    class Makes(dict[Case, Saved]):
        def __missing__(self, case: Case) -> Saved:
            folder = tmp_path_factory.mktemp("saved")
            losses, norms = run_ranks(case.world_size, _train, case=case, folder=folder)[0]
            self[case] = Saved(folder, losses, norms)
            return self[case]

    made = Makes()
    yield made


LLAMA = {"more": MODELS["Llama 3.1"], "tied": False}
BLOOM = {"more": MODELS["BLOOM"]}
QWEN = {"more": MODELS["Qwen"]}
FULL = Case(tp=2, pp=2, dp=2, zero=1, **LLAMA)
TIED = Case(tp=2, pp=2, zero=0, **BLOOM)
STAGE_3 = Case(tp=2, dp=2, zero=3, **QWEN)
STAGE_2 = Case(dp=3, zero=2, global_batch_size=12, **BLOOM)
BF16 = Case(tp=2, pp=2, zero=1, precision="bf16", **LLAMA)
BF16_STAGE_3 = Case(dp=2, zero=3, precision="bf16", **BLOOM)

CHANGES = [
    (FULL, Case(zero=0, **LLAMA)),
    (FULL, Case(tp=4, zero=1, **LLAMA)),
    (FULL, Case(pp=4, zero=1, **LLAMA)),
    (FULL, Case(dp=4, zero=2, **LLAMA)),
    (FULL, Case(dp=4, zero=3, **LLAMA)),
    (FULL, Case(tp=2, dp=2, zero=1, **LLAMA)),
    (TIED, Case(pp=3, zero=1, **BLOOM)),
    (TIED, Case(dp=2, zero=3, **BLOOM)),
    (STAGE_3, Case(tp=4, pp=2, zero=1, **QWEN)),
    (STAGE_3, Case(tp=1, dp=4, zero=3, **QWEN)),
    (STAGE_2, Case(tp=2, pp=2, zero=0, global_batch_size=12, **BLOOM)),
    (STAGE_2, Case(dp=2, zero=3, global_batch_size=12, **BLOOM)),
    (BF16, Case(dp=2, zero=2, precision="bf16", **LLAMA)),
    (BF16, Case(tp=4, zero=3, precision="bf16", **LLAMA)),
    (BF16_STAGE_3, Case(tp=2, pp=2, zero=1, precision="bf16", **BLOOM)),
]


def _name(case: Case) -> str:
    return f"tp{case.tp}pp{case.pp}dp{case.dp}z{case.zero}{case.precision}"


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=[f"{_name(a)}-to-{_name(b)}" for a, b in CHANGES])
def test_run_goes_on_at_another_layout(before: Case, after: Case, saved: dict[Case, Saved], tmp_path: Path) -> None:
    straight = saved[before]
    resumed = run_ranks(after.world_size, _resume, case=after, folder=straight.folder, again=tmp_path)
    facts = resumed[0]
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (after.tp, after.pp, after.dp, after.zero)
    assert facts["step"] == STOP + STEPS

    first, second = open_checkpoint(straight.folder), open_checkpoint(tmp_path)
    assert second.manifest.progress == first.manifest.progress
    for name in first.specs:
        for kind in KINDS:
            assert torch.equal(second.read(name, kind), first.read(name, kind)), (name, kind)
    assert any(first.read(name, "exp_avg").any() for name in first.specs)

    tolerance = 1e-5 if before.precision == "fp32" else 2e-2
    assert facts["losses"] == pytest.approx(straight.losses, rel=tolerance)
    assert facts["norms"] == pytest.approx(straight.norms, rel=10 * tolerance)
    if before.precision == "fp32":
        ends = open_checkpoint(straight.folder / "end"), open_checkpoint(tmp_path / "end")
        for name in first.specs:
            for kind in KINDS[1:]:
                expected, found = (end.read(name, kind) for end in ends)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=float(expected.abs().max()) * 1e-4)
