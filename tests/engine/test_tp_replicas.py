"""Copies of unsplit parameters on tensor-parallel ranks stay equal to the bit (field report P3)."""

from __future__ import annotations

import pytest
import torch

from benchmarks.tiny_run import MODELS, Case, Precision, TinyRun
from megatron_ds.mpu import shard_spec
from tests.dist.pool import run_ranks

STEPS, CHECK_EVERY = 200, 20
PERTURBED = "layers.0.input_layernorm.weight"


def _differences(case: Case) -> tuple[int, list[str], list[str]]:
    """How many replicas there are, which of them differed at some check, and which do after one copy was changed."""
    tiny = TinyRun(case)
    replicas = [name for name, parameter in tiny.engine.named_parameters() if shard_spec(parameter).dim is None]
    different: list[str] = []
    for step in range(STEPS):
        tiny.train_step(step)
        if (step + 1) % CHECK_EVERY == 0:
            different += tiny.engine.differing_replicas()
    if tiny.mpu.tp_rank == 1:
        with torch.no_grad():
            weight = dict(tiny.engine.named_parameters())[PERTURBED]
            weight[0] += 2**-6
    return len(replicas), different, tiny.engine.differing_replicas()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "model", "more"),
    [
        ("fp32", "GPT", ()),
        ("bf16", "GPT", ()),
        ("bf16", "GPT", ("--sequence-parallel",)),
        ("bf16", "Qwen", ("--sequence-parallel",)),
    ],
)
def test_replicas_are_equal_after_200_steps_with_dropout(
    precision: Precision, model: str, more: tuple[str, ...]
) -> None:
    flags = (*MODELS.get(model, ()), *more)
    case = Case(2, zero=1, precision=precision, micro_batch_size=8, num_layers=2, dropout=0.1, more=flags)
    for replicas, different, perturbed in run_ranks(2, _differences, case=case):
        assert replicas >= 5
        assert different == []
        assert perturbed == [PERTURBED]
