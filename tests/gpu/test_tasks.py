"""Instruction tuning with packed sequences, and log-probabilities, on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.scoring import score_windows
from megatron_ds.generation.windows import windows_of
from megatron_ds.mpu import ModelParallelUnit
from tests.dist.pool import run_ranks
from tests.generation.models import POSITIONS, SIZES, VOCAB_SIZE, model_at, random_weights
from tests.tasks.toy import NO_DROPOUT, finetune, task_flags

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_packed_examples_have_the_loss_of_each_by_itself(tmp_path: Path) -> None:
    """Flex attention keeps the examples of a sequence apart, at heads of 16 and more."""
    flags = [*task_flags("SFT", tmp_path), *NO_DROPOUT, "--global-batch-size", "4", "--micro-batch-size", "2"]
    flags += ["--kv-channels", "16", "--lr", "1e-30"]
    (alone,) = run_ranks(1, finetune, device="cuda", timeout=200, flags=[*flags, "--no-packing"])
    expected = alone.metrics[0]["lm_loss"]
    for more, tolerance in ((), 1e-4), (("--bf16",), 2e-2):
        (packed,) = run_ranks(1, finetune, device="cuda", timeout=200, flags=[*flags, *more])
        assert 1 < len(packed.losses) < len(alone.losses)
        assert packed.metrics[0]["lm_loss"] == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(
    "options", [{}, {"num_query_groups": 2, "position_embedding_type": "rope"}], ids=["GPT", "GQA"]
)
def test_log_probabilities_are_those_of_the_cpu(options: dict[str, object]) -> None:
    config = ModelConfig(**SIZES, **options)  # type: ignore[arg-type]
    weights = random_weights(config)
    tokens = tuple(torch.randint(0, VOCAB_SIZE, (3 * POSITIONS,), generator=torch.Generator().manual_seed(0)).tolist())
    windows = windows_of(tokens, 5, POSITIONS)
    expected = list(score_windows(model_at(1, 1, config, weights), windows, 3, lambda _: None))
    model = InferenceModel(config, ModelParallelUnit.offline(device="cuda"), torch.float32)
    model.load(lambda name, spec: spec.shard(weights[name], 0, 1))
    for score, want in zip(score_windows(model, windows, 3, lambda _: None), expected, strict=True):
        assert score.log_probability == pytest.approx(want.log_probability, rel=1e-4)
        assert (score.num_targets, score.num_right) == (want.num_targets, want.num_right)
