"""Models with every option are stopped and loaded, and go on as if they had not been, to the bit (field report C2)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.resume import CASES, EVAL_INTERVAL, MODEL_CASES, MODEL_STEPS, MODEL_STOP, compare
from benchmarks.tiny_run import Case, batch_of_run, some_tokens_count
from megatron_ds.checkpoint import Manifest, find_checkpoint
from megatron_ds.config.blocks import RunConfig, TrainingConfig
from megatron_ds.config.catalog import Option, all_options
from megatron_ds.models import SequentialModel, initialize_weights, run_layers
from megatron_ds.mpu import ModelParallelUnit

# Options that can be left out of the cases: they change neither the model nor how a step is worked out.
_EXCEPTIONS = {
    "model.model_type": "tests/engine/test_bert.py, as the next two",
    "model.bert_binary_head": "see model_type",
    "model.num_tokentypes": "see model_type",
    "model.output_head": "tests/tasks/test_finetune.py, as the next one",
    "model.num_classes": "see output_head",
    "parallel.distributed_timeout_minutes": "how long is waited",
    "training.eval_interval": "when something is measured; the cases evaluate every 4 steps",
    "training.eval_iters": "how long something is measured",
    "training.check_tp_replicas_interval": "a check",
    "training.checkpoint_activations": "short for recompute_granularity full",
    "training.recompute_activations": "short for recompute_granularity selective",
    "training.fp16": "CUDA only",
    "training.loss_scale": "fp16",
    "training.initial_loss_scale": "fp16",
    "training.min_loss_scale": "fp16",
    "training.loss_scale_window": "fp16",
    "training.hysteresis": "fp16",
    "training.max_skipped_steps": "fp16",
}
# Kernels of GPUs: they have no state, and on a CPU PyTorch chooses by itself.
_CHOICES_ELSEWHERE = {"training.attention_backend": {"cudnn", "flash", "efficient", "flex"}}


def _wanted_options() -> list[Option]:
    """The options that the cases have to cover; a required one has no value to differ from."""
    return [
        option
        for path, option in all_options().items()
        if option.block in ("model", "parallel", "training") and not option.required and path not in _EXCEPTIONS
    ]


@cache
def _run_of(case: Case) -> RunConfig:
    return case.resolve().run


def _value(run: RunConfig, option: Option) -> Any:
    return getattr(getattr(run, option.block), option.name)


def _runs_per_micro_batch(training: TrainingConfig, layers: int) -> tuple[float, float]:
    """How often each of a rank's `layers` layers, and its core of attention, runs in a training step."""
    if training.recompute != "full":
        return 1, 2 if training.recompute == "selective" else 1
    recomputed = training.recompute_num_layers or 1
    both = 1 + recomputed / layers if training.recompute_method == "block" else 2
    return both, both


def _layers_of_ranks(case: Case) -> list[int]:
    """Transformer layers of each rank; ranks of a stage follow each other."""
    method = _run_of(case).parallel.pp_partition_method
    even = [case.num_layers // case.pp] * case.pp
    stages = [int(number) for number in method[7:].split(",")] if method.startswith("layers:") else even
    return [layers for layers in stages for _ in range(case.tp * case.dp)]


@pytest.mark.parametrize("model", MODEL_CASES)
def test_resumed_run_of_model_is_the_straight_run(model: str, tmp_path: Path) -> None:
    case = MODEL_CASES[model]
    comparison = compare(case, tmp_path, (MODEL_STOP,), MODEL_STEPS)
    assert comparison.differences() == []
    run = _run_of(case)
    assert [straight.facts["layers"] for straight in comparison.straight] == _layers_of_ranks(case)
    for rank, straight in enumerate(comparison.straight):
        facts = straight.facts
        assert (facts["tp"], facts["pp"], facts["dp"], facts["zero"]) == (case.tp, case.pp, case.dp, case.zero)
        assert facts["parameter_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[case.precision]
        assert facts["sequence_parallel"] == run.parallel.sequence_parallel
        assert (facts["whole_parameters"] == 0) == (case.zero == 3)
        runs = _runs_per_micro_batch(run.training, facts["layers"])
        assert (facts["layer_runs"], facts["core_runs"]) == runs
        # Nothing stands still that should move.
        quantities = (straight.losses, straight.norms, straight.learning_rates, straight.batch_hashes)
        for values in (*quantities, straight.random_states):
            assert len(set(values.values())) == MODEL_STEPS
        # The last learning rate is 0.
        assert len(set(straight.weight_hashes.values())) == MODEL_STEPS - 1
        resumed = comparison.resumed[MODEL_STOP][rank]
        assert list(resumed.losses) == list(range(MODEL_STOP + 1, MODEL_STEPS + 1))
        assert list(resumed.validation_losses) == [EVAL_INTERVAL]
    found = find_checkpoint(tmp_path / str(MODEL_STOP))
    saved = Manifest.read(found.folder / found.tag).model
    assert {name: saved[name] for name in saved if name != "vocab_size"} == run.model.model_dump(exclude={"vocab_size"})


def test_cases_of_models_have_every_layout_and_stage() -> None:
    cases = MODEL_CASES.values()
    assert {(case.tp, case.pp, case.dp) for case in cases} == {(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1)}
    assert {case.zero for case in cases if case.dp > 1} == {1, 2, 3}
    assert {case.precision for case in cases} == {"fp32", "bf16"}


def test_cases_have_every_option_and_every_choice() -> None:
    runs = [_run_of(case) for case in (*CASES, *MODEL_CASES.values())]
    for option in _wanted_options():
        values = {_value(run, option) for run in runs}
        assert values - {option.default}, f"{option.path} is {option.default} in all cases"
        choices = {True, False} if option.kind == "bool" else set(option.choices)
        assert choices - values <= _CHOICES_ELSEWHERE.get(option.path, set()), option.path


def test_exceptions_of_cases_are_options_that_no_case_has() -> None:
    assert all_options().keys() >= _EXCEPTIONS.keys() | _CHOICES_ELSEWHERE.keys()
    # BERT's are in test_bert.py, those of its heads in test_finetune.py.
    of_models = {path.removeprefix("model.") for path in _EXCEPTIONS if path.startswith("model.")}
    assert of_models == {"model_type", "bert_binary_head", "num_tokentypes", "output_head", "num_classes"}


def _model_of(run: RunConfig) -> tuple[dict[str, torch.Size], Tensor]:
    """Shapes of the parameters, and what a training pass with dropout gives, on one process."""
    mpu = ModelParallelUnit.offline(device=torch.device("cpu"))
    model = SequentialModel(run_layers(run, mpu))
    initialize_weights(model.named_parameters(), run.training.seed, mpu)
    if run.training.bf16:
        model.bfloat16()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
    return shapes, model(batch_of_run(run, 0, 2, some_tokens_count).inputs).detach()


def _changes_model(option: Option, case: Case) -> bool:
    """Whether the model is another one with the option's default instead of the case's value."""
    run = _run_of(case)
    other = run.model_copy(update={"model": run.model.model_copy(update={option.name: option.default})})
    (shapes, output), (other_shapes, other_output) = _model_of(run), _model_of(other)
    return shapes != other_shapes or not torch.equal(output, other_output)


@pytest.mark.parametrize(
    "option",
    # Without a vocabulary there is no model.
    [option for option in _wanted_options() if option.block == "model" and option.name != "vocab_size"],
    ids=lambda option: option.name,
)
def test_every_option_of_the_model_takes_effect_in_some_case(option: Option) -> None:
    cases = [case for case in MODEL_CASES.values() if _value(_run_of(case), option) != option.default]
    assert any(_changes_model(option, case) for case in cases)
