"""What only a pipeline can get wrong: partitions, few micro-batches, tuples between stages, evaluation in between.

Field reports P11, P12, P14, G6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.tiny_run import MODELS, SEQ_LENGTH, VOCAB_SIZE, Case, Outcome, TinyRun, run_case, run_plain_pytorch
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.batch import Batch
from megatron_ds.engine.pipeline import PipelineTrainEngine
from megatron_ds.models import LayerDef, ParallelTransformerLayer
from megatron_ds.models.attention import AttentionScheme
from megatron_ds.models.gpt import LanguageModelHead
from megatron_ds.mpu import ModelParallelUnit, VocabParallelEmbedding
from tests.dist.pool import run_ranks

STEPS = 3


def _parts_and_outcome(case: Case) -> tuple[list[int], Outcome]:
    """First layers of the stages (and the end), and what training comes to."""
    tiny = TinyRun(case)
    assert isinstance(tiny.engine, PipelineTrainEngine)
    stages = tiny.engine.stages()
    parts = [stages[0].start, *(stage.stop for stage in stages)]
    losses, norms = zip(*((float(r.loss), r.grad_norm) for r in map(tiny.train_step, range(STEPS))), strict=True)
    return parts, Outcome(list(losses), list(norms), [], {}, {}, {})


# Of the combinations of 1 to 3 layers with 2 to 4 stages these are legal: a stage without a layer is refused.
@pytest.mark.parametrize(
    ("num_layers", "stages", "precision", "zero", "parts"),
    [
        (2, 2, "fp32", 1, [0, 3, 6]),
        (3, 2, "fp32", 0, [0, 3, 7]),
        # A first stage of embeddings alone: it has matrices only, so one parameter group where the others have two.
        (3, 3, "bf16", 1, [0, 2, 4, 7]),
        (3, 3, "fp32", 1, [0, 2, 4, 7]),
    ],
)
def test_stages_of_embeddings_finish(num_layers: int, stages: int, precision: str, zero: int, parts: list[int]) -> None:
    """P11; that all others are refused is in tests/launch/test_bad_input.py."""
    more = ("--pp-partition-method", "type:embed|transformer")
    case = Case(pp=stages, zero=zero, precision=precision, num_layers=num_layers, more=more)  # type: ignore[arg-type]
    (expected,) = run_ranks(1, run_plain_pytorch, case=case, steps=STEPS)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    for found_parts, outcome in run_ranks(stages, _parts_and_outcome, case=case, timeout=60):
        assert found_parts == parts
        assert outcome.losses == pytest.approx(expected.losses, rel=tolerance)
        assert outcome.norms == pytest.approx(expected.norms, rel=tolerance)


@pytest.mark.parametrize(
    ("case", "method", "parts"),
    [
        (Case(pp=2, zero=0), "layers:1,3", [0, 3, 8]),
        (Case(pp=2, zero=1, tied=False), "layers:3,1", [0, 5, 8]),
        (Case(pp=2, zero=1), "layers:0,4", [0, 2, 8]),
        (Case(pp=2, zero=1, recompute=True), "layers:4,0", [0, 6, 8]),
        (Case(tp=2, pp=2, zero=1, micro_batch_size=2), "layers:3,1", [0, 5, 8]),
        (Case(pp=4, zero=1, precision="bf16"), "layers:0,3,1,0", [0, 2, 5, 6, 8]),
        # Fewer layers than stages: the outer ones have the embeddings and the head.
        (Case(pp=4, zero=1, num_layers=3), "layers:0,1,2,0", [0, 2, 3, 5, 7]),
        (Case(pp=2, zero=1, num_layers=1, recompute=True), "layers:0,1", [0, 2, 5]),
        (Case(pp=2, zero=1), "uniform", [0, 4, 8]),
        (Case(pp=2, zero=1), "parameters", [0, 4, 8]),
    ],
)
def test_layers_dealt_otherwise_give_the_numbers_of_one_process(case: Case, method: str, parts: list[int]) -> None:
    (expected,) = run_ranks(1, run_plain_pytorch, case=case, steps=STEPS)
    tolerance = 1e-5 if case.precision == "fp32" else 2e-2
    case = replace(case, more=("--pp-partition-method", method))
    for found_parts, outcome in run_ranks(case.world_size, _parts_and_outcome, case=case, timeout=60):
        assert found_parts == parts
        assert outcome.losses == pytest.approx(expected.losses, rel=tolerance)
        assert outcome.norms == pytest.approx(expected.norms, rel=tolerance)


@pytest.mark.parametrize(("micro_batch_size", "num_micro_batches"), [(1, 8), (4, 2), (8, 1)])
def test_more_and_fewer_micro_batches_than_stages_agree(micro_batch_size: int, num_micro_batches: int) -> None:
    case = Case(pp=4, zero=1, micro_batch_size=micro_batch_size)
    (expected,) = run_ranks(1, run_plain_pytorch, case=case)
    for outcome in run_ranks(4, run_case, case=case):
        assert outcome.facts["num_micro_batches"] == num_micro_batches
        assert outcome.losses == pytest.approx(expected.losses, rel=1e-5)
        assert outcome.eval_losses == pytest.approx(expected.eval_losses, rel=1e-5)


def _train_with_evaluations(case: Case, eval_micro_batch_size: int | None) -> tuple[list[float], list[float]]:
    """Losses and norms of training, with an evaluation before and after each step if a size is given."""
    tiny = TinyRun(case)
    results = []
    for step in range(STEPS):
        if eval_micro_batch_size is not None:
            first = tiny.engine.evaluate(tiny.batches(90, eval_micro_batch_size))
            again = tiny.engine.evaluate(tiny.batches(90, eval_micro_batch_size))
            # Dropout is off: the same batch has the same loss.
            assert float(first.loss) == float(again.loss) > 0
        results.append(tiny.train_step(step))
    return [float(result.loss) for result in results], [result.grad_norm for result in results]


@pytest.mark.parametrize(
    ("layout", "model"), [((1, 2, 1), ()), ((2, 1, 1), ()), ((1, 2, 1), MODELS["BERT"])], ids=["PP2", "TP2", "BERT PP2"]
)
def test_evaluation_with_another_batch_size_leaves_training_alone(
    layout: tuple[int, int, int], model: tuple[str, ...]
) -> None:
    """P12, G6."""
    case = Case(*layout, zero=1, micro_batch_size=2, dropout=0.1, more=model)
    without = run_ranks(2, _train_with_evaluations, case=case, eval_micro_batch_size=None)
    for size in (1, 4):
        assert run_ranks(2, _train_with_evaluations, case=case, eval_micro_batch_size=size) == without


def _shortened(batch: Batch, length: int) -> Batch:
    """The first `length` tokens of each sample."""
    return Batch(**{name: None if part is None else part[:, :length] for name, part in vars(batch).items()})


def _train_and_evaluate_lengths(case: Case, lengths: Sequence[int]) -> tuple[list[float], list[float]]:
    """Losses of training, and of evaluations with samples of each length between the steps."""
    tiny = TinyRun(case)
    losses, eval_losses = [], []
    for step in range(STEPS):
        for length in lengths:
            batches = [_shortened(batch, length) for batch in tiny.batches(90, 4)]
            eval_losses.append(float(tiny.engine.evaluate(batches).loss))
        losses.append(float(tiny.train_step(step).loss))
    return losses, eval_losses


@pytest.mark.parametrize("stages", [2, 4])
def test_evaluation_with_samples_of_other_lengths_leaves_training_alone(stages: int) -> None:
    """P12. Shorter than in training, as long, and shorter again: the buffers between stages follow."""
    lengths = (5, SEQ_LENGTH, 1)
    expected = run_ranks(1, _train_and_evaluate_lengths, case=Case(micro_batch_size=2), lengths=lengths)[0]
    case = Case(pp=stages, zero=1, micro_batch_size=2)
    for losses, eval_losses in run_ranks(stages, _train_and_evaluate_lengths, case=case, lengths=lengths, timeout=60):
        assert losses == pytest.approx(expected[0], rel=1e-5)
        assert eval_losses == pytest.approx(expected[1], rel=1e-5)


class _MaskedEmbedding(VocabParallelEmbedding):
    """Tokens to the pair that all later layers pass on: embeddings, and a mask of whole numbers."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """``[B, S] -> [S, B, H], [S, B] int64``."""
        return super().forward(tokens), (tokens.transpose(0, 1) % 3 > 0).long().contiguous()


class _MaskedLayer(ParallelTransformerLayer):
    """A transformer layer that only touches positions whose mask is not zero."""

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """``([S, B, H], [S, B]) -> ([S, B, H], [S, B])``."""
        hidden, mask = inputs
        return torch.where(mask.unsqueeze(-1) > 0, super().forward(hidden), hidden), mask


class _MaskedHead(LanguageModelHead):
    """The head, which has no use for the mask."""

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """``([S, B, H], [S, B]) -> [S, B, V/tp]``."""
        return super().forward(inputs[0])


def _masked_layers(run: RunConfig, mpu: ModelParallelUnit) -> list[LayerDef]:
    model = run.model

    def vocabulary(module_type: type[VocabParallelEmbedding]) -> VocabParallelEmbedding:
        return module_type(VOCAB_SIZE, model.padded_vocab_size(mpu.tp_size), model.hidden_size, mpu, init_std=0.02)

    def layer() -> nn.Module:
        return _MaskedLayer(model, mpu, AttentionScheme(model, mpu))

    return [
        LayerDef("word_embeddings", _MaskedEmbedding, lambda: vocabulary(_MaskedEmbedding)),
        *(LayerDef(f"layers.{number}", _MaskedLayer, layer, recompute=True) for number in range(model.num_layers)),
        LayerDef("lm_head", _MaskedHead, lambda: vocabulary(_MaskedHead)),
    ]


def _train_masked(case: Case) -> tuple[list[float], list[float], float]:
    tiny = TinyRun(case, layers=_masked_layers)
    runs = tiny.count_block_forwards()
    results = [tiny.train_step(step) for step in range(STEPS)]
    forwards = len(runs) / len(tiny.blocks) / case.num_micro_batches / STEPS
    return [float(result.loss) for result in results], [result.grad_norm for result in results], forwards


def test_whole_numbers_travel_between_stages() -> None:
    """P14."""
    case = Case(pp=2, zero=1, micro_batch_size=2, recompute=True, more=("--pp-partition-method", "parameters"))
    losses, norms, forwards = run_ranks(1, _train_masked, case=replace(case, pp=1, zero=0, recompute=False))[0]
    assert forwards == 1
    for found_losses, found_norms, found_forwards in run_ranks(2, _train_masked, case=case):
        assert found_forwards == 2
        assert found_losses == pytest.approx(losses, rel=1e-5)
        assert found_norms == pytest.approx(norms, rel=1e-5)
