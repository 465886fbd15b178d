"""Model presets, built on the meta device, have the published numbers of parameters."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest

from megatron_ds.config import resolve
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.files import presets_folder
from megatron_ds.models import model_layers, whole_model_specs
from megatron_ds.mpu import Topology

# Counts that the models' cards and papers print, or that their weights add up to.
PUBLISHED = {
    # "110M" and "340M" in the paper.
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "bloom_176b": 176_247_271_424,
    "bloom_560m": 559_214_592,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3p1_8b": 8_030_261_248,
    "mistral_7b": 7_241_732_096,
    "pythia_410m": 405_334_016,
    "pythia_1p4b": 1_414_647_808,
    "pythia_6p9b": 6_857_302_016,
    # Without the two rows of positions that OPT's tables have and never use.
    "opt_1p3b": 1_315_758_080 - 2 * 2048,
    "opt_6p7b": 6_658_473_984 - 2 * 4096,
    "qwen3_0p6b": 596_049_920,
    "gpt3_175b": 174_604_259_328,
    # Layer: QKV and output 4 h^2 + 4 h, three matrices of h x 32768 with biases, two norms; tied head; final norm.
    "glm_130b": 70 * (4 * 12288**2 + 4 * 12288 + 3 * 12288 * 32768 + 2 * 32768 + 12288 + 4 * 12288)
    + 150_528 * 12288
    + 2 * 12288,
    "opt_175b": 96 * (12 * 12288**2 + 13 * 12288) + (50_272 + 2048) * 12288 + 2 * 12288,
}

# The class of Hugging Face's transformers and its options.
_LLAMA3: dict[str, Any] = {"vocab_size": 128_256, "num_key_value_heads": 8, "tie_word_embeddings": False}
_PYTHIA: dict[str, Any] = {"vocab_size": 50_304, "tie_word_embeddings": False}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_base": ("Bert", {}),
    "bert_large": (
        "Bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "bloom_176b": ("Bloom", {"n_layer": 70, "hidden_size": 14336, "n_head": 112}),
    "bloom_560m": ("Bloom", {"n_layer": 24, "hidden_size": 1024, "n_head": 16}),
    "llama3_8b": ("Llama", {**_LLAMA3, "intermediate_size": 14336}),
    "llama3_70b": (
        "Llama",
        {
            **_LLAMA3,
            "intermediate_size": 28672,
            "hidden_size": 8192,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
        },
    ),
    "mistral_7b": ("Mistral", {}),
    "pythia_410m": (
        "GPTNeoX",
        {
            **_PYTHIA,
            **{"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        },
    ),
    "pythia_6p9b": (
        "GPTNeoX",
        {
            **_PYTHIA,
            "vocab_size": 50_432,
            **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 16384},
        },
    ),
    "opt_6p7b": (
        "OPT",
        {
            **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384},
            "word_embed_proj_dim": 4096,
        },
    ),
    "qwen3_0p6b": (
        "Qwen3",
        {
            **{"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8},
            **{"head_dim": 128, "intermediate_size": 3072, "tie_word_embeddings": True},
        },
    ),
}


def _preset(name: str) -> ModelConfig:
    flags = ["--model-preset", name, "--micro-batch-size", "1", "--train-iters", "1", "--lr", "1"]
    model = resolve(flags, {"WORLD_SIZE": "1", "DS_ACCELERATOR": "cuda"}, "test").run.model
    size = 30_522 if model.model_type == "bert" else 50_257
    return model if model.vocab_size is not None else model.model_copy(update={"vocab_size": size})


def _count(name: str) -> int:
    specs = whole_model_specs(partial(model_layers, _preset(name)))
    return sum(math.prod(spec.full_shape) for spec in specs.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_preset_on_the_meta_device_has_the_published_number_of_parameters(name: str) -> None:
    assert _count(name) == PUBLISHED[name]


def test_every_preset_of_a_published_family_is_counted() -> None:
    names = {path.stem for path in (presets_folder() / "models").glob("*.json")}
    assert {name for name in names if not name.startswith(("gpt2", "sc21"))} == set(PUBLISHED)


@pytest.mark.parametrize("name", THEIRS)
def test_preset_has_as_many_parameters_as_transformers_class(name: str) -> None:
    import torch
    import transformers

    family, options = THEIRS[name]
    config = getattr(transformers, f"{family}Config")(**options)
    with torch.device("meta"):
        kind = "PreTraining" if family == "Bert" else "CausalLM"
        model = getattr(transformers, f"{family}For{kind}")._from_config(config)
    theirs = sum(parameter.numel() for parameter in model.parameters())
    if family == "OPT":
        theirs -= 2 * config.hidden_size
    assert _count(name) == theirs


@pytest.mark.parametrize("name", ["bloom_176b", "glm_130b", "llama3_70b"])
@pytest.mark.parametrize("tp_size", [2, 8, 16])
def test_large_preset_is_cut_into_equal_shares(name: str, tp_size: int) -> None:
    model = _preset(name)
    specs = whole_model_specs(partial(model_layers, model), Topology(tp_size=tp_size))
    for parameter, spec in specs.items():
        if spec.dim is not None:
            rows = spec.padded_rows or spec.full_shape[spec.dim]
            assert spec.local_shape(tp_size)[spec.dim] * tp_size == rows, parameter


def test_presets_of_glm_have_its_papers_factors() -> None:
    model = _preset("glm_130b")
    # "alpha = (2N)^(1/2)" and an initialisation scaled by (2N)^(-1/2), N = 70 (Zeng et al. 2022, section 2.1).
    assert model.residual_alpha == pytest.approx(math.sqrt(140), rel=1e-12)
    assert model.branch_init_gain == pytest.approx(1 / math.sqrt(140), rel=1e-12)


def test_presets_hold_nothing_but_options_that_differ_from_the_defaults() -> None:
    for path in sorted((presets_folder() / "models").glob("*.json")):
        for name, value in json.loads(path.read_text()).items():
            field = ModelConfig.model_fields[name]
            same = not field.is_required() and field.default == value
            assert not same or name == "layernorm_epsilon", (path.stem, name)
