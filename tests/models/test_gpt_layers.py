from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch

from megatron_ds.config import resolve
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.files import presets_folder
from megatron_ds.config.partition import LAYER_CLASSES
from megatron_ds.models import GptLoss, SequentialModel, gpt_layers, initialize_weights, whole_model_specs
from megatron_ds.mpu import ModelParallelUnit, ShardSpec, Topology

RUNS = sorted(
    path.stem
    for path in (presets_folder() / "runs").glob("gpt*.json")
    # Finetuning takes the model of its pretrained checkpoint.
    if "task" not in json.loads(path.read_text())["megatron_ds"]
)

# Weights and biases of one GPT layer by hand: 4 h^2 + 4 h for attention, 8 h^2 + 5 h for the MLP, 4 h for two norms.
GPT3_175B_PARAMETERS = 96 * (12 * 12288**2 + 13 * 12288) + (50257 + 2048) * 12288 + 2 * 12288


def _tiny(**changes: object) -> ModelConfig:
    options = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 16,
        "vocab_size": 61,
        "make_vocab_size_divisible_by": 1,
        **changes,
    }
    return ModelConfig(**options)


def _numel(specs: dict[str, ShardSpec]) -> int:
    return sum(math.prod(spec.full_shape) for spec in specs.values())


@pytest.mark.parametrize("name", RUNS)
def test_run_config_at_its_own_layout_builds_on_the_meta_device(name):
    content = json.loads((presets_folder() / "runs" / f"{name}.json").read_text())
    parallel = content["megatron_ds"]["parallel"]
    tp_size = parallel.get("tensor_model_parallel_size", 1)
    pp_size = parallel.get("pipeline_model_parallel_size", 1)
    argv = ["--deepspeed_config", name, "--vocab-size", "50257"]
    run = resolve(argv, {"WORLD_SIZE": str(tp_size * pp_size), "DS_ACCELERATOR": "cuda"}, "test").run
    mpu = ModelParallelUnit.offline(Topology(tp_size, pp_size), device="meta")
    with torch.device("meta"):
        model = SequentialModel(gpt_layers(run.model, mpu))
    specs = whole_model_specs(partial(gpt_layers, run.model), mpu.topology)
    parameters = dict(model.named_parameters())
    assert mpu.tp_size == tp_size
    assert list(parameters) == list(specs)
    for parameter_name, parameter in parameters.items():
        assert tuple(parameter.shape) == specs[parameter_name].local_shape(tp_size), parameter_name
    model_options = run.model
    hidden, layers, ffn = model_options.hidden_size, model_options.num_layers, model_options.ffn_size
    per_layer = 4 * hidden**2 + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    assert _numel(specs) == layers * per_layer + (50257 + model_options.num_positions) * hidden + 2 * hidden


def test_gpt3_175b_has_the_published_size():
    run = resolve(
        ["--deepspeed_config", "gpt3_175b", "--vocab-size", "50257"],
        {"WORLD_SIZE": "128", "DS_ACCELERATOR": "cuda"},
        "test",
    ).run
    assert _numel(whole_model_specs(partial(gpt_layers, run.model))) == GPT3_175B_PARAMETERS == 174_604_259_328


def test_gpt_layers_classes_are_those_that_a_partition_method_is_checked_against():
    variants = (
        {},
        {"position_embedding_type": "rope", "normalization": "RMSNorm", "untie_embeddings_and_output_weights": True},
        {"embed_layernorm": True, "prefix_lm": True},
    )
    mpu = ModelParallelUnit.offline(Topology(), device="meta")
    found = [{layer.module_type.__name__ for layer in gpt_layers(_tiny(**options), mpu)} for options in variants]
    assert found[0] == {"VocabParallelEmbedding", "PositionEmbedding", "ParallelTransformerLayer", "LayerNorm"}
    assert set().union(*found) == set(LAYER_CLASSES["gpt"])


def test_gpt_layers_names_are_the_canonical_ones():
    names = list(whole_model_specs(partial(gpt_layers, _tiny(num_layers=1))))
    assert names == [
        "word_embeddings.weight",
        "position_embeddings.weight",
        "layers.0.input_layernorm.weight",
        "layers.0.input_layernorm.bias",
        "layers.0.attention.query_key_value.weight",
        "layers.0.attention.query_key_value.bias",
        "layers.0.attention.dense.weight",
        "layers.0.attention.dense.bias",
        "layers.0.post_attention_layernorm.weight",
        "layers.0.post_attention_layernorm.bias",
        "layers.0.mlp.dense_h_to_4h.weight",
        "layers.0.mlp.dense_h_to_4h.bias",
        "layers.0.mlp.dense_4h_to_h.weight",
        "layers.0.mlp.dense_4h_to_h.bias",
        "final_layernorm.weight",
        "final_layernorm.bias",
    ]


@pytest.mark.parametrize("untied", [False, True])
def test_untied_head_has_weights_of_its_own(untied):
    specs = whole_model_specs(partial(gpt_layers, _tiny(untie_embeddings_and_output_weights=untied)))
    assert ("lm_head.weight" in specs) is untied


def test_causality_a_later_token_changes_no_earlier_score():
    config = _tiny(hidden_dropout=0.0, attention_dropout=0.0)
    mpu = ModelParallelUnit.offline()
    model = SequentialModel(gpt_layers(config, mpu))
    initialize_weights(model.named_parameters(), 1234, mpu)
    tokens = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 61
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:9], after[:9], rtol=0, atol=1e-6)
    assert (before[9:] - after[9:]).abs().amax(dim=(1, 2)).min() > 1e-6


def test_initial_weights_have_the_spread_that_the_options_say():
    config = _tiny(hidden_size=256, num_layers=2, init_method_std=0.01)
    mpu = ModelParallelUnit.offline()
    model = SequentialModel(gpt_layers(config, mpu))
    initialize_weights(model.named_parameters(), 1234, mpu)
    weights = dict(model.named_parameters())
    assert weights["layers.0.mlp.dense_h_to_4h.weight"].std().item() == pytest.approx(0.01, rel=0.02)
    assert weights["layers.0.mlp.dense_4h_to_h.weight"].std().item() == pytest.approx(0.01 / 2, rel=0.02)
    assert not weights["layers.0.attention.dense.bias"].any()
    assert (weights["final_layernorm.weight"] == 1).all()
    assert not torch.equal(weights["layers.0.mlp.dense_h_to_4h.weight"], weights["layers.1.mlp.dense_h_to_4h.weight"])


def test_initial_embeddings_do_not_depend_on_vocabulary_padding():
    rows = []
    for padding in ({}, {"make_vocab_size_divisible_by": 128}, {"pad_vocab_size_to": 100}):
        mpu = ModelParallelUnit.offline()
        model = SequentialModel(gpt_layers(_tiny(**padding), mpu))
        initialize_weights(model.named_parameters(), 1234, mpu)
        rows.append(dict(model.named_parameters())["word_embeddings.weight"])
    assert [len(weight) for weight in rows] == [61, 128, 100]
    for padded in rows[1:]:
        assert torch.equal(rows[0], padded[:61])
        assert not padded[61:].any()


def test_padded_rows_change_no_loss_and_get_no_gradient():
    """T1: whatever stands in the padding, it is not in the softmax."""
    mpu = ModelParallelUnit.offline()
    tokens = torch.arange(32).reshape(2, 16)
    losses = []
    for padding in ({}, {"pad_vocab_size_to": 100}):
        config = _tiny(**padding, hidden_dropout=0, attention_dropout=0)
        model = SequentialModel(gpt_layers(config, mpu))
        initialize_weights(model.named_parameters(), 1234, mpu)
        embedding = dict(model.named_parameters())["word_embeddings.weight"]
        with torch.no_grad():
            embedding[61:] = 5.0
        loss = GptLoss(config, mpu)(model(tokens), (tokens, torch.ones(2, 16)))
        loss.backward()
        losses.append(loss.item())
        assert not embedding.grad[61:].any()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
