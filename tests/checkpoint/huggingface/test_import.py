"""What can be in a folder of a model: files of both kinds, older names, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatron_ds.checkpoint.huggingface import import_huggingface
from megatron_ds.errors import CheckpointError
from tests.checkpoint.huggingface.families import FAMILIES, VOCAB_SIZE, save

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Makes a model's folder, once."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("saved")
            save(FAMILIES[name], folders[name])
        return folders[name]

    return make


@pytest.fixture
def copied(saved: Folder, tmp_path: Path) -> Folder:
    """Makes a model's folder that a test may change."""
    return lambda name: Path(shutil.copytree(saved(name), tmp_path / "model"))


def _set(folder: Path, **entries: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def _drop(folder: Path, *entries: str) -> None:
    file = folder / "config.json"
    file.write_text(
        json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key not in entries})
    )


def _rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def _all(folder: Path) -> dict[str, Tensor]:
    return dict(import_huggingface(folder).weights.items())


def _assert_same(folder: Path, other: Path) -> None:
    ours, expected = _all(folder), _all(other)
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())


def test_import_of_several_files_is_that_of_one(saved: Folder, tmp_path: Path) -> None:
    save(FAMILIES["llama 3.1"], tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 3
    _assert_same(tmp_path / "shards", saved("llama 3.1"))


@pytest.mark.parametrize("zipped", [True, False])
def test_import_of_bin_is_that_of_safetensors(zipped: bool, saved: Folder, copied: Folder) -> None:
    folder = copied("gpt2")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    # Files of earlier years have a second copy of a tied head.
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    _assert_same(folder, saved("gpt2"))


def test_import_of_several_bin_files_is_that_of_one(saved: Folder, copied: Folder) -> None:
    folder = copied("pythia")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"pytorch_model-{number % 3}.bin" for number, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        torch.save({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _assert_same(folder, saved("pythia"))


class _Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def test_bin_that_would_run_code_is_refused_with_its_name(
    copied: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copied("gpt2")
    tensors: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "more": _Malicious()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is refused: it names (posix|os)\.system"):
        import_huggingface(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", 3])
def test_index_that_leaves_its_folder_is_refused(name: Any, copied: Folder) -> None:
    folder = copied("gpt2")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="no file of its folder"):
        import_huggingface(folder)


@pytest.mark.parametrize(
    ("family", "prefix", "buffer"),
    [
        ("gpt2", "transformer.", "h.0.attn.bias"),
        ("bloom", "transformer.", None),
        ("opt", "model.", None),
    ],
)
def test_model_that_was_saved_without_its_head_has_no_prefix(
    family: str, prefix: str, buffer: str | None, saved: Folder, copied: Folder
) -> None:
    folder = copied(family)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        plain = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        return plain if buffer is None else {**plain, buffer: torch.ones(1, 1, 4, 4).tril()}

    _rewrite(folder, change)
    _assert_same(folder, saved(family))


def _renamed(*pairs: tuple[str, str]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def rename(name: str) -> str:
        for old, new in pairs:
            name = re.sub(old, new, name)
        return name

    return lambda tensors: {rename(name): tensor for name, tensor in tensors.items()}


_DECODER = "cls.predictions.decoder."
BERT_FILES: dict[str, tuple[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]]] = {
    "names of TensorFlow": ("bert", _renamed(("LayerNorm.weight", "LayerNorm.gamma"), ("Norm.bias", "Norm.beta"))),
    "bias of the decoder alone": ("bert", _renamed(("predictions.bias", "predictions.decoder.bias"))),
    "both copies": (
        "bert, masked tokens, other GELU",
        lambda tensors: {
            **tensors,
            _DECODER + "bias": tensors["cls.predictions.bias"].clone(),
            _DECODER + "weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        },
    ),
    "body with a prefix, and its buffer": (
        "bert, no pooler, ReLU",
        lambda tensors: {"bert.embeddings.position_ids": torch.arange(32)[None], **_renamed(("^", "bert."))(tensors)},
    ),
}


@pytest.mark.parametrize("name", BERT_FILES)
def test_bert_under_other_names_is_the_same(name: str, saved: Folder, copied: Folder) -> None:
    family, change = BERT_FILES[name]
    folder = copied(family)
    _rewrite(folder, change)
    assert load_file(folder / "model.safetensors").keys() != load_file(saved(family) / "model.safetensors").keys()
    _assert_same(folder, saved(family))


def test_bert_is_of_the_class_whose_head_its_files_have(saved: Folder, copied: Folder) -> None:
    folder = copied("bert")
    # As in the models of the hub that were pretrained with both heads.
    _set(folder, architectures=["BertForMaskedLM"])
    assert import_huggingface(folder).architecture.name == "BertForPreTraining"
    _assert_same(folder, saved("bert"))
    _drop(folder, "architectures")
    assert import_huggingface(folder).architecture.name == "BertForPreTraining"


def test_pooler_that_masked_tokens_do_not_use_is_left_out_and_named(
    saved: Folder, copied: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    family = "bert, masked tokens, other GELU"
    folder = copied(family)
    _rewrite(folder, lambda tensors: {**tensors, "bert.pooler.dense.weight": torch.ones(32, 32)})
    _assert_same(folder, saved(family))
    assert "bert.pooler.dense.weight: left out, because BertForMaskedLM does not use" in caplog.messages[0]


def test_bert_with_another_bias_of_its_decoder_is_refused(copied: Folder) -> None:
    folder = copied("bert")
    _rewrite(folder, lambda tensors: {**tensors, _DECODER + "bias": tensors["cls.predictions.bias"] + 1})
    with pytest.raises(CheckpointError, match=r"cls.predictions.decoder.bias is not cls.predictions.bias"):
        import_huggingface(folder)


def test_entries_of_earlier_versions_say_the_same(saved: Folder, copied: Folder) -> None:
    folder = copied("pythia")
    _drop(folder, "rope_parameters")
    _set(folder, rotary_pct=0.25, rotary_emb_base=10000)
    assert import_huggingface(folder).weights.model == import_huggingface(saved("pythia")).weights.model
    _set(folder, rotary_pct=0.5, rotary_emb_base=77, rope_scaling={"type": "linear", "factor": 2.0})
    model = import_huggingface(folder).weights.model
    assert (model.rotary_percent, model.rotary_base, model.rotary_seq_len_interpolation_factor) == (0.5, 77, 2.0)


def test_llama_scaling_of_earlier_versions_says_the_same(saved: Folder, copied: Folder) -> None:
    folder = copied("llama 3.1")
    scaling = json.loads((folder / "config.json").read_text())["rope_parameters"]
    base = scaling.pop("rope_theta")
    _drop(folder, "rope_parameters")
    _set(folder, rope_theta=base, rope_scaling=scaling)
    assert import_huggingface(folder).weights.model == import_huggingface(saved("llama 3.1")).weights.model


def test_bloom_of_the_hub_with_its_older_names_is_read(saved: Folder, copied: Folder) -> None:
    folder = copied("bloom")
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    _drop(folder, "hidden_size", "n_head")
    _set(folder, n_embed=hidden, num_attention_heads=4)
    assert import_huggingface(folder).weights.model == import_huggingface(saved("bloom")).weights.model


def test_tied_head_with_other_weights_is_refused(copied: Folder) -> None:
    folder = copied("gpt2")
    _rewrite(folder, lambda tensors: {**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"ties the output head, and lm_head.weight is not transformer.wte"):
        import_huggingface(folder)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "other class": ("gpt2", {"model_type": "mamba"}, "model_type 'mamba' can't be imported"),
    "other head of bert": (
        "bert, 3 classes",
        {"architectures": ["BertForTokenClassification"]},
        "architectures 'BertForTokenClassification' can't be imported",
    ),
    "relative positions of bert": (
        "bert",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type is relative_key, and this importer knows absolute",
    ),
    "decoder": ("bert", {"is_decoder": True}, "is_decoder is True"),
    "untied bert": ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    "activation of bert's head": ("bert", {"hidden_act": "relu"}, "hidden_act is relu, and this importer knows gelu"),
    "activation": ("gpt2", {"activation_function": "quick_gelu"}, "activation_function is quick_gelu, and"),
    "scores": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    "biases of attention": ("llama 3.1", {"attention_bias": True}, "disable_bias_linear is True, and another entry"),
    "no biases of attention": ("pythia", {"attention_bias": False}, "attention_bias is False"),
    "biases of qwen3": ("qwen3", {"attention_bias": True}, "attention_bias is True"),
    "yarn": (
        "llama 3.1",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
        "rope_type is yarn, and this importer knows default, linear or llama3",
    ),
    "rotated part": (
        "llama 3.1",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e4}},
        "partial_rotary_factor is 0.5",
    ),
    "rope by layer": (
        "qwen3",
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "knows the same for all layers",
    ),
    "window in some layers": (
        "qwen2",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types is full_attention and sliding_attention",
    ),
    "post-LN of OPT": ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
    "projection of OPT": ("opt", {"word_embed_proj_dim": 16}, "says that hidden_size is 16"),
    "quantized": ("llama 3.1", {"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
    "no number": ("gpt2", {"n_layer": "two"}, "num_layers is wrong or missing"),
    "layers of windows": ("qwen2", {"layer_types": 5}, "layer_types can't be understood"),
    "width of heads": ("gpt2", {"n_embd": 30}, "hidden size 30 is not a multiple of 4 heads"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_entry_that_ours_can_not_say_is_refused_with_its_value(name: str, copied: Folder) -> None:
    family, entries, message = REFUSED[name]
    folder = copied(family)
    _set(folder, **entries)
    with pytest.raises(CheckpointError) as raised:
        import_huggingface(folder)
    assert len(raised.value.problems) == 1
    assert message in str(raised.value)
    assert "config.json" in str(raised.value)


def test_all_entries_that_ours_can_not_say_are_in_one_report(copied: Folder) -> None:
    folder = copied("gpt2")
    _set(folder, activation_function="mish", add_cross_attention=True, pruned_heads={"0": [1]})
    with pytest.raises(CheckpointError) as raised:
        import_huggingface(folder)
    assert {problem.sources[0].name for problem in raised.value.problems} == {
        *("activation_function", "add_cross_attention", "pruned_heads"),
    }


def test_entry_that_is_not_known_is_named(copied: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder = copied("gpt2")
    _set(folder, soft_cap=30.0, use_cache=False)
    import_huggingface(folder)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ["soft_cap"]


def _without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "missing": (_without("model.layers.1.self_attn.k_proj.weight"), r"lacks model.layers.1.self_attn.k_proj.weight"),
    "too many": (
        lambda tensors: {**tensors, "model.layers.0.self_attn.q_proj.bias": torch.ones(32)},
        r"has model.layers.0.self_attn.q_proj.bias, for which LlamaForCausalLM",
    ),
    "other shape": (
        lambda tensors: {**tensors, "model.norm.weight": torch.ones(31)},
        r"model.norm.weight is \[31\], and config.json makes it \[32\]",
    ),
    "other vocabulary": (
        lambda tensors: {**tensors, "lm_head.weight": torch.ones(VOCAB_SIZE + 1, 32)},
        r"lm_head.weight is \[68, 32\], and config.json makes it \[67, 32\]",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit_are_refused(name: str, copied: Folder) -> None:
    change, message = TENSORS[name]
    folder = copied("llama 3.1")
    _rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        import_huggingface(folder)


def test_numbers_of_other_kinds_are_refused(copied: Folder) -> None:
    folder = copied("llama 3.1")
    name = "model.layers.0.self_attn.o_proj.weight"
    _rewrite(folder, lambda tensors: {**tensors, name: tensors[name].to(torch.int8)})
    with pytest.raises(CheckpointError, match=f"{name}: weights are fp32, bf16 or fp16, and these are not"):
        import_huggingface(folder)


@pytest.mark.parametrize("damage", ["no config", "no weights", "cut short", "no JSON", "list"])
def test_damaged_folder_is_refused_with_the_file(damage: str, copied: Folder) -> None:
    folder = copied("gpt2")
    weights, config = folder / "model.safetensors", folder / "config.json"
    named = weights if damage in ("no weights", "cut short") else config
    if damage == "cut short":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif damage in ("no JSON", "list"):
        config.write_text("[1]" if damage == "list" else "{")
    else:
        named.unlink()
    with pytest.raises(CheckpointError, match=named.name):
        import_huggingface(folder)
