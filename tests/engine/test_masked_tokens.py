"""The loss is the mean over the tokens that count in the whole global batch, however it is cut (field report P9)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.tiny_run import Case, Outcome, TinyRun, global_batch, run_plain_pytorch
from tests.dist.pool import run_ranks

LAST_STEP = 2


def _uneven_mask(step: int, samples: int, length: int) -> Tensor:
    """Samples in which all, one or none of 16 tokens count; in the last step none at all."""
    counts = (16, 1, 0, 16, 0, 0, 1, 0) if step < LAST_STEP else (0,) * 8
    assert (samples, length) == (8, 16)
    return torch.stack([(torch.arange(length) < count).float() for count in counts])


def _train(case: Case) -> tuple[list[tuple[float, float]], list[tuple[float, float]], bool, int]:
    """Loss and norm of each step, loss and tokens of each evaluation, whether weights are finite, micro-batches."""
    tiny = TinyRun(case, mask_rule=_uneven_mask)
    steps, evaluations = [], []
    for step in range(LAST_STEP + 1):
        found = tiny.engine.evaluate(tiny.batches(step))
        evaluations.append((float(found.loss), float(found.counts["lm_loss"])))
        result = tiny.train_step(step)
        steps.append((float(result.loss), result.grad_norm))
    finite = all(bool(parameter.isfinite().all()) for _, parameter in tiny.engine.named_parameters())
    return steps, evaluations, finite, tiny.facts()["num_micro_batches"]


def _expected() -> Outcome:
    return run_plain_pytorch(Case(), LAST_STEP + 1, eval_before=range(LAST_STEP), mask_rule=_uneven_mask)


@pytest.fixture(scope="module")
def expected() -> Outcome:
    outcome: Outcome = run_ranks(1, _expected)[0]
    return outcome


@pytest.mark.parametrize(
    "case",
    [
        Case(micro_batch_size=1),
        Case(dp=2, zero=1, micro_batch_size=2),
        Case(dp=2, zero=2, micro_batch_size=4),
        Case(pp=2, zero=1, micro_batch_size=4),
        Case(pp=2, zero=1, micro_batch_size=2),
        Case(pp=2, dp=2, zero=1, micro_batch_size=1),
    ],
    ids=lambda case: f"pp{case.pp}dp{case.dp}-mbs{case.micro_batch_size}",
)
def test_cutting_the_batch_changes_nothing(case: Case, expected: Outcome) -> None:
    for steps, evaluations, finite, num_micro_batches in run_ranks(case.world_size, _train, case=case):
        assert num_micro_batches == case.num_micro_batches
        losses, norms = zip(*steps, strict=True)
        assert list(losses) == pytest.approx(expected.losses, rel=1e-5)
        assert list(norms) == pytest.approx(expected.norms, rel=1e-5)
        assert [loss for loss, _ in evaluations[:LAST_STEP]] == pytest.approx(expected.eval_losses, rel=1e-5)
        assert [tokens for _, tokens in evaluations] == [34, 34, 0]
        # Nothing counts in the last step: no loss and no gradient, rather than 0/0.
        assert (losses[LAST_STEP], norms[LAST_STEP], evaluations[LAST_STEP][0]) == (0, 0, 0)
        assert finite


def test_mean_of_means_would_be_another_loss() -> None:
    """The masks above do tell the two apart."""
    batch = global_batch(0, 8, _uneven_mask)
    weights = torch.rand(8, 16, generator=torch.Generator().manual_seed(1))
    over_tokens = (weights * batch.loss_mask).sum() / batch.loss_mask.sum()
    of_means = ((weights * batch.loss_mask).sum(1) / batch.loss_mask.sum(1).clamp(min=1)).mean()
    assert abs(float(over_tokens / of_means) - 1) > 0.1
