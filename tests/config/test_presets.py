from __future__ import annotations

import json

import pytest

from megatron_ds.config import resolve
from megatron_ds.config.docs import config_page
from megatron_ds.config.files import presets_folder
from tests.config.helpers import environ, resolved, words

FOLDER = presets_folder()
MODELS = sorted(path.stem for path in (FOLDER / "models").glob("*.json"))
DEEPSPEED = sorted(path.stem for path in (FOLDER / "deepspeed").glob("*.json"))
RUNS = sorted(path.stem for path in (FOLDER / "runs").glob("*.json"))

# Parameters of the published tables, in units of 10^9.
BILLIONS = {
    "gpt2_125m": 0.125,
    "gpt2_350m": 0.35,
    "gpt2_760m": 0.76,
    "gpt2_1p3b": 1.3,
    "gpt2_2p7b": 2.7,
    "gpt2_6p7b": 6.7,
    "gpt2_13b": 13.0,
    "gpt3_175b": 175.0,
    "sc21_1p7b": 1.7,
    "sc21_3p6b": 3.6,
    "sc21_7p5b": 7.5,
    "sc21_18p4b": 18.4,
    "sc21_39p1b": 39.1,
    "sc21_76p1b": 76.1,
    "sc21_145p6b": 145.6,
}


def test_presets_of_the_gpt_tables_are_those_that_have_a_published_size():
    assert {name for name in MODELS if name.startswith(("gpt", "sc21"))} == set(BILLIONS)


# The other families are counted on the meta device, in tests/models/test_presets.py.
@pytest.mark.parametrize("name", BILLIONS)
def test_model_preset_has_the_published_number_of_parameters(name):
    run = resolved(["--model-preset", name, "--micro-batch-size", "1", "--train-iters", "1", "--lr", "1"]).run
    model, vocab = run.model, run.model.vocab_size or 50257
    layer = 12 * model.hidden_size**2 + 13 * model.hidden_size
    count = model.num_layers * layer + (vocab + model.num_positions) * model.hidden_size
    # The tables round; the smallest sizes are rounded most.
    assert count / 1e9 == pytest.approx(BILLIONS[name], rel=0.035)


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed_preset_resolves_to_the_stage_and_precision_in_its_name(name):
    result = resolve(words("--deepspeed_config", name), {"DS_ACCELERATOR": "cuda"}, "x")
    stage, kind = name.removeprefix("zero").split("_", 1)
    device = {"offload": "cpu", "infinity_nvme": "nvme"}.get(kind)
    assert result.run.zero_stage == int(stage)
    assert result.run.training.precision == ("bf16" if device else kind)
    zero = result.deepspeed["zero_optimization"]
    assert zero.get("offload_optimizer", {}).get("device") == ("cpu" if device else None)
    assert zero.get("offload_param", {}).get("device") == (device if stage == "3" else None)
    assert "auto" not in json.dumps(result.deepspeed)


@pytest.mark.parametrize("name", RUNS)
def test_run_preset_resolves_at_the_processes_it_needs(name):
    block = json.loads((FOLDER / "runs" / f"{name}.json").read_text())["megatron_ds"]
    parallel = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, **block["parallel"]}
    ranks = parallel["tensor_model_parallel_size"] * parallel["pipeline_model_parallel_size"]
    # A task's model is the pretrained one, and its steps follow from epochs.
    model = "gpt2_350m" if name.startswith("gpt") else "bert_large"
    task = ["--model-preset", model, "--train-iters", "100"] if "task" in block else []
    for replicas in (1, 2):
        run = resolve(["--deepspeed_config", name, *task], environ(ranks * replicas), "x").run
        assert run.dp_size == replicas
        assert run.model.num_layers >= parallel["pipeline_model_parallel_size"]
        assert run.num_micro_batches * run.training.micro_batch_size * replicas == run.training.global_batch_size


def test_there_is_a_run_for_each_size_from_125m_to_175b():
    assert {name for name in MODELS if name.startswith("gpt")} <= set(RUNS)
    assert "gpt_tiny_tp2_pp2" in RUNS


def test_docs_config_page_is_current():
    page = FOLDER.parent / "docs" / "config.md"
    assert page.read_text(encoding="utf-8") == config_page(), "run python -m megatron_ds.config.docs > docs/config.md"
