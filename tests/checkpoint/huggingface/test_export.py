"""Models of ours as models of transformers: the logits, what is refused, and the files that are written."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from megatron_ds.checkpoint.huggingface import ARCHITECTURES, compare_logits, export_huggingface
from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.architectures import choose_architecture
from megatron_ds.checkpoint.huggingface.check import check_difference
from megatron_ds.checkpoint.huggingface.config_file import NO_MATTER, export_problems, to_config, to_model
from megatron_ds.checkpoint.huggingface.convert import our_weights, their_tensors
from megatron_ds.checkpoint.huggingface.read_files import open_files
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.files import presets_folder
from megatron_ds.errors import CheckpointError, ConfigError
from megatron_ds.models import gpt_layers, whole_model_specs
from megatron_ds.mpu import Topology
from tests.checkpoint.huggingface.families import HEADS, HIDDEN, LAYERS, POSITIONS, VOCAB_SIZE

_ROPE: dict[str, Any] = {"position_embedding_type": "rope"}
_BERT: dict[str, Any] = {"model_type": "bert", "residual_connection": "post_ln", "activation": "gelu"}
_LLAMA: dict[str, Any] = {**_ROPE, "normalization": "RMSNorm", "activation": "swiglu", "disable_bias_linear": True}


def _weights(dtype: torch.dtype = torch.float32, **options: Any) -> ModelWeights:
    """A model in which nothing is zero or one."""
    model = ModelConfig(
        **{
            "num_layers": LAYERS,
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "seq_length": POSITIONS,
            "vocab_size": VOCAB_SIZE,
            **options,
        }
    )
    specs = model_specs(model)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: (torch.randn(spec.full_shape, generator=generator) * 0.2).to(dtype) for name, spec in specs.items()
    }
    return ModelWeights(model, specs, tensors.__getitem__)


def _export(weights: ModelWeights, folder: Path, **arguments: Any) -> Any:
    return export_huggingface(weights, folder, data={}, kept=folder.parent / "nothing", **arguments)


# Our options, and the class that they become.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "defaults": ({}, "gpt2"),
    "squared ReLU, untied, epsilon": (
        {"activation": "squared_relu", "untie_embeddings_and_output_weights": True, "layernorm_epsilon": 1e-2},
        "gpt2",
    ),
    "ReLU": ({"activation": "relu", "ffn_hidden_size": 48}, "opt"),
    "ReLU, epsilon": ({"activation": "relu", "layernorm_epsilon": 1e-2}, "gpt2"),
    "no biases": ({"disable_bias_linear": True}, "opt"),
    "ALiBi": ({"position_embedding_type": "alibi", "embed_layernorm": True}, "bloom"),
    "rope, side by side": ({**_ROPE, "residual_connection": "parallel", "rotary_percent": 0.5}, "gpt_neox"),
    "neighbours": ({**_ROPE, "rotary_interleaved": True, "rotary_percent": 0.5}, "gpt_neox"),
    "llama, neighbours, shared keys": ({**_LLAMA, "rotary_interleaved": True, "num_query_groups": 2}, "llama"),
    "llama, linear gate": ({**_LLAMA, "activation": "liglu", "rotary_seq_len_interpolation_factor": 3.0}, "llama"),
    "llama, biases": ({**_LLAMA, "activation": "reglu", "disable_bias_linear": False}, "llama"),
    "window": ({**_LLAMA, "window_size": 4, "rotary_base": 300.0}, "mistral"),
    "biases of queries, window": ({**_LLAMA, "window_size": 4, "add_qkv_bias": True}, "qwen2"),
    "norms of queries, neighbours": ({**_LLAMA, "qk_layernorm": True, "rotary_interleaved": True}, "qwen3"),
    "bert": (_BERT, "bert"),
    # Both become a table of zeros.
    "bert, masked tokens, no token types": ({**_BERT, "bert_binary_head": False}, "bert"),
    "bert, hidden states, no token types": ({**_BERT, "output_head": "none", "num_tokentypes": 0}, "bert"),
    # The binary head of its pretraining is gone.
    "bert, classes": (
        {**_BERT, "output_head": "classification", "num_classes": 3, "bert_binary_head": False, "activation": "silu"},
        "bert",
    ),
    "fp32 residual": ({**_LLAMA, "fp32_residual_connection": True, "kv_channels": 16}, "llama"),
}


@pytest.mark.parametrize("name", CASES)
def test_export_has_our_logits(name: str, tmp_path: Path) -> None:
    options, expected = CASES[name]
    weights = _weights(**options)
    exported = _export(weights, tmp_path / "out")
    assert exported.architecture.model_type == expected
    comparison = compare_logits(weights, tmp_path / "out", torch.float32)
    assert comparison.largest_logit > 0.1
    assert comparison.largest_difference <= 1e-5


@pytest.mark.parametrize("name", [name for name, (options, _) in CASES.items() if "rotary_interleaved" in options])
def test_layouts_of_neighbours_are_inverse(name: str, tmp_path: Path) -> None:
    weights = _weights(**CASES[name][0])
    architecture = _export(weights, tmp_path / "out").architecture
    again = our_weights(architecture, weights.model, open_files(tmp_path / "out"), "out")
    theirs = dict(their_tensors(architecture, weights))
    name_of_qkv = "layers.0.attention.query_key_value.weight"
    assert torch.equal(again.read(name_of_qkv), weights.read(name_of_qkv))
    # The order is another one, and not by chance the same.
    query = architecture.place(name_of_qkv, LAYERS).theirs[0]
    plain = ModelWeights(weights.model.model_copy(update={"rotary_interleaved": False}), weights.specs, weights.read)
    assert not torch.equal(theirs[query], dict(their_tensors(architecture, plain))[query])
    assert all(torch.equal(again.read(key), value) for key, value in weights.items())


# Beginnings of the names of presets, and the class that each becomes.
PRESETS = {
    **dict.fromkeys(("gpt2", "gpt3", "sc21"), "gpt2"),
    "bert": "bert",
    **{"bloom": "bloom", "pythia": "gpt_neox", "opt": "opt", "llama3": "llama", "mistral": "mistral", "qwen3": "qwen3"},
}


_WITHOUT_CLASS = {"glm": "--residual-connection deepnorm"}


def test_every_preset_becomes_its_own_class_and_comes_back() -> None:
    for file in sorted((presets_folder() / "models").glob("*.json")):
        model = ModelConfig(**{"vocab_size": 50257, **json.loads(file.read_text())})
        family = file.stem.split("_")[0].removesuffix("p1")
        if family in _WITHOUT_CLASS:
            with pytest.raises(ConfigError, match=_WITHOUT_CLASS[family]):
                choose_architecture(model)
            continue
        architecture = choose_architecture(model)
        assert architecture.model_type == PRESETS[family]
        again = to_model(architecture, to_config(architecture, model), file.name)
        assert to_config(architecture, again) == to_config(architecture, model)
        assert model_specs(again) == model_specs(model)


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "deepnorm": ({"residual_connection": "deepnorm"}, ["--residual-connection deepnorm"]),
    "no positions": ({"position_embedding_type": "none"}, ["--position-embedding-type none"]),
    "prefix": ({**_LLAMA, "prefix_lm": True}, ["--prefix-lm True"]),
    "gate without a function": ({"activation": "liglu"}, ["--activation liglu"]),
    "norm of embeddings": ({"embed_layernorm": True}, ["--embed-layernorm True"]),
    "bert, pre-LN": ({"model_type": "bert"}, ["--residual-connection pre_ln"]),
    # The head of masked tokens has the activation of the MLP there.
    "bert, ReLU": ({**_BERT, "activation": "relu"}, ["--activation relu"]),
    "bert, rope, RMSNorm, no biases": (
        {**_BERT, **_ROPE, "normalization": "RMSNorm", "disable_bias_linear": True},
        ["--position-embedding-type rope", "--normalization RMSNorm", "--disable-bias-linear True"],
    ),
    "three at once": (
        {**_LLAMA, "embed_layernorm": True, "prefix_lm": True, "rotary_percent": 0.5},
        ["--embed-layernorm True", "--prefix-lm True", "--rotary-percent 0.5"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_export_of_what_no_class_expresses_names_every_option(name: str, tmp_path: Path) -> None:
    options, expected = REFUSED[name]
    with pytest.raises(ConfigError) as raised:
        _export(_weights(**options), tmp_path / "out")
    assert len(raised.value.problems) == len(expected)
    for problem, start in zip(sorted(map(str, raised.value.problems)), sorted(expected), strict=True):
        assert problem.startswith(start + " can't be written as ")
    assert not (tmp_path / "out").exists()


def test_export_to_a_named_class_refuses_what_it_has_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--position-embedding-type learned_absolute .*LlamaForCausalLM") as raised:
        _export(_weights(), tmp_path / "out", architecture="llama")
    named = {problem.sources[0].name for problem in raised.value.problems}
    assert named == {"position_embedding_type", "normalization", "activation"}
    for name, options, other in (("bert", {}, "gpt"), ("gpt2", _BERT, "bert")):
        with pytest.raises(ConfigError, match=f"--model-type {other} can't be written as "):
            _export(_weights(**options), tmp_path / "out", architecture=name)
    exported = _export(_weights(), tmp_path / "out", architecture="opt")
    assert exported.architecture is ARCHITECTURES["opt"][0]
    assert compare_logits(_weights(), tmp_path / "out", torch.float32).largest_difference <= 1e-5


@pytest.mark.parametrize("architecture", [one for classes in ARCHITECTURES.values() for one in classes])
def test_option_that_a_class_does_not_name_is_refused_unless_at_its_default(architecture: Architecture) -> None:
    said = {name for entry in architecture.entries for name in entry.options}
    # Nothing is in two tables, so nothing is decided twice.
    assert not said & {*architecture.derived, *architecture.always}
    assert said | {*architecture.derived, *architecture.always} <= set(ModelConfig.model_fields)
    assert export_problems(architecture, _model_of(architecture)) == []
    switches = {name for name, field in ModelConfig.model_fields.items() if field.default is False}
    unsaid = switches - said - set(architecture.always) - NO_MATTER - {"add_qkv_bias"}
    assert "prefix_lm" in unsaid
    for name in unsaid:
        problems = export_problems(architecture, _model_of(architecture).model_copy(update={name: True}))
        assert [problem.sources[0].name for problem in problems] == [name]


def _model_of(architecture: Architecture) -> ModelConfig:
    return to_model(architecture, {"vocab_size": VOCAB_SIZE}, "config.json")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_export_casts_and_says_so(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = _weights()
    assert _export(weights, tmp_path / "out", dtype=dtype).dtype == dtype
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == str(dtype).removeprefix("torch.")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {dtype}  # noqa: SIM118
    # Rounded alike on both sides.
    check_difference(compare_logits(weights, tmp_path / "out", dtype))


def test_export_of_weights_too_large_for_fp16_is_refused_with_their_name(tmp_path: Path) -> None:
    weights = _weights()
    large = weights.read("final_layernorm.weight")
    large[3] = 1e6
    with pytest.raises(CheckpointError, match=r"final_layernorm.weight has weights up to 1e\+06"):
        _export(weights, tmp_path / "out", dtype=torch.float16)
    assert list(tmp_path.iterdir()) == []


def test_export_in_shards_has_an_index_and_no_large_file(tmp_path: Path) -> None:
    weights = _weights(**_LLAMA)
    exported = _export(weights, tmp_path / "out", max_shard_bytes=20_000)
    assert len(exported.files) > 3
    assert exported.files[0] == f"model-00001-of-{len(exported.files):05}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == exported.files
    sizes: list[int] = []
    for file_name in exported.files:
        with safe_open(tmp_path / "out" / file_name, "pt") as file:
            names = list(file.keys())
            assert all(index["weight_map"][name] == file_name for name in names)
            sizes.append(sum(file.get_tensor(name).nbytes for name in names))
    assert max(sizes) <= 20_000
    assert sum(sizes) == index["metadata"]["total_size"] == sum(tensor.nbytes for _, tensor in weights.items())
    assert compare_logits(weights, tmp_path / "out", torch.float32).largest_difference <= 1e-5


def test_export_reads_one_parameter_at_a_time(tmp_path: Path) -> None:
    weights = _weights()
    alive: list[Any] = []

    def read(name: str) -> Tensor:
        import weakref

        # What was read before has been let go.
        assert sum(reference() is not None for reference in alive) <= 1
        tensor = weights.read(name).clone()
        alive.append(weakref.ref(tensor))
        return tensor

    _export(ModelWeights(weights.model, weights.specs, read), tmp_path / "out")
    assert len(alive) == len(weights.specs)


def test_export_of_weights_that_two_ranks_have_cut_is_that_of_one(tmp_path: Path) -> None:
    weights = _weights()
    specs = whole_model_specs(partial(gpt_layers, weights.model), Topology(tp_size=2))
    assert specs["word_embeddings.weight"].padded_rows != weights.specs["word_embeddings.weight"].padded_rows
    cut = ModelWeights(weights.model, specs, weights.read)
    _export(cut, tmp_path / "out")
    assert compare_logits(cut, tmp_path / "out", torch.float32).largest_difference <= 1e-5


def test_export_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match="out exists already"):
        _export(_weights(), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_check_refuses_other_weights(tmp_path: Path) -> None:
    weights = _weights()
    _export(weights, tmp_path / "out")
    weights.read("layers.1.attention.dense.bias")[0] += 0.01
    comparison = compare_logits(weights, tmp_path / "out", torch.float32)
    with pytest.raises(CheckpointError, match="the two models differ"):
        check_difference(comparison)
