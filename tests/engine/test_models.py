"""Models with every option of the architecture, at every kind of layout (field reports P1, P2, P6, P16)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.parity import compare, expected_outcome, outcome_of, within_tolerance
from benchmarks.parity_rows import MODEL_SET
from benchmarks.tiny_run import DOCUMENT_FLAGS, MODELS, Case, TinyRun, reference
from megatron_ds.config.blocks import ModelConfig
from tests.dist.pool import run_ranks


def _model(case: Case) -> str:
    return next(name for name, flags in MODELS.items() if case.more[: len(flags)] == flags)


def _name(case: Case) -> str:
    documents = "-documents" if case.more[-len(DOCUMENT_FLAGS) :] == DOCUMENT_FLAGS else ""
    recompute = "-recompute" if case.recompute else ""
    return f"{_model(case)}-tp{case.tp}pp{case.pp}dp{case.dp}-z{case.zero}-{case.precision}{recompute}{documents}"


@pytest.mark.parametrize("case", MODEL_SET, ids=_name)
def test_any_layout_gives_the_numbers_of_one_process(case: Case) -> None:
    found, facts = compare(case), outcome_of(case).facts
    assert facts["engine"] == ("PipelineTrainEngine" if case.pp > 1 else "ZeroTrainEngine")
    assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
    assert facts["block_forwards"] == (2 if case.recompute else 1)
    assert within_tolerance(found, case.precision), found
    ours, theirs = outcome_of(case).initial_weights, expected_outcome(reference(case)).initial_weights
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_every_model_has_tensor_parallel_pipelines_and_zero_without_them() -> None:
    for name in MODELS:
        cases = [case for case in MODEL_SET if _model(case) == name]
        assert any(case.tp > 1 and case.pp > 1 for case in cases), name
        assert any(case.zero in (2, 3) for case in cases), name
        assert {case.precision for case in cases} == {"fp32", "bf16"}, name
    assert {case.zero for case in MODEL_SET} == {0, 1, 2, 3}


def test_every_option_of_the_architecture_is_in_some_model() -> None:
    runs = [Case(more=flags).resolve().run.model for flags in MODELS.values()]
    plain = Case().resolve().run.model
    sizes = {"num_layers", "hidden_size", "num_attention_heads", "seq_length", "ffn_hidden_size", "vocab_size"}
    elsewhere = {"max_position_embeddings", "make_vocab_size_divisible_by", "untie_embeddings_and_output_weights"}
    elsewhere |= {"pad_vocab_size_to"}
    elsewhere |= {"output_head", "num_classes"}  # tests/tasks/test_finetune.py
    # Numbers that change no formula; DeepNorm's factors and Llama 3's bounds are worked by hand in tests/models.
    numbers = {"layernorm_epsilon", "init_method_std", "hidden_dropout", "attention_dropout", "deepnorm_alpha"}
    numbers |= {"deepnorm_beta", "rope_low_freq_factor", "rope_high_freq_factor"}
    for option in ModelConfig.model_fields.keys() - sizes - elsewhere - numbers:
        assert any(getattr(run, option) != getattr(plain, option) for run in runs), option
    for option in ("position_embedding_type", "activation", "residual_connection", "normalization"):
        (choices,) = [field.annotation for name, field in ModelConfig.model_fields.items() if name == option]
        assert {getattr(run, option) for run in (*runs, plain)} == set(choices.__args__), option


def test_every_model_computes_something_else() -> None:
    """Otherwise the rows above would agree for want of anything to disagree about."""
    cases = {reference(case) for case in MODEL_SET if case.precision == "fp32"}
    losses = {case: expected_outcome(case).losses[1] for case in cases}
    assert len({_model(case) for case in cases}) == len(MODELS)
    for (one, first), (other, second) in combinations(losses.items(), 2):
        assert abs(first - second) > 1e-5, (_name(one), _name(other))


def _gradients(case: Case) -> dict[str, Tensor]:
    """Gradients of one step without clipping, whole, by canonical name, on rank 0."""
    from megatron_ds.engine.weights import full_weights

    tiny = TinyRun(case)
    found: dict[str, Tensor] = {}

    def catch(*_: Any) -> None:
        for _, parameter in tiny.engine.named_parameters():
            assert parameter.grad is not None
            parameter.data.copy_(parameter.grad)
        found.update(full_weights(tiny.engine, tiny.mpu) or {})

    # At ZeRO stage 0 the optimizer's parameters are the model's own.
    tiny.engine.deepspeed_engine.basic_optimizer.register_step_pre_hook(catch)
    tiny.train_step(0)
    return found


def assert_same_gradients(case: Case) -> None:
    alone = Case(zero=0, more=case.more, tied=case.tied, micro_batch_size=case.micro_batch_size)
    expected = run_ranks(1, _gradients, case=alone)[0]
    found = run_ranks(case.world_size, _gradients, case=case)[0]
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # What is added to all scores of a query changes nothing.
        assert gradient.abs().max() > 1e-6 or name.endswith("k_layernorm.bias"), name
        near = max(1e-6 * float(gradient.abs().max()), 1e-9)
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=near, msg=name)


@pytest.mark.parametrize("model", ["Llama 3.1", "Qwen", "post-LN", "ALiBi, window"])
def test_gradients_of_shared_heads_and_their_norms_are_those_of_one_process(model: str) -> None:
    """P16: 4 heads in 1 and 2 groups on four ranks."""
    assert_same_gradients(Case(4, zero=0, micro_batch_size=8, more=(*MODELS[model], "--clip-grad", "0")))
