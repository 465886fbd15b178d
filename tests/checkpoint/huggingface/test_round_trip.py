"""Models of transformers as ours and back: the same logits, the same bits, the same config."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatron_ds.checkpoint.huggingface import ARCHITECTURES, compare_logits, export_huggingface, import_huggingface
from megatron_ds.checkpoint.huggingface.architecture import Architecture
from tests.checkpoint.huggingface.families import FAMILIES, save

# Entries that other spellings of the same became, and what only older versions of transformers read.
_SPELLINGS = {"gelu_fast": "gelu_new"}
_OLDER = {"rope_theta", "rope_scaling", "rotary_pct", "rotary_emb_base", "torch_dtype"}


def _as_transformers_reads(folder: Path) -> dict[str, Any]:
    """config.json with the defaults of the class filled in."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).to_dict()
    return {key: _SPELLINGS.get(str(value), value) for key, value in config.items() if key != "_name_or_path"}


@pytest.mark.parametrize("name", FAMILIES)
def test_model_of_transformers_has_its_logits_and_comes_back_to_the_bit(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    family = FAMILIES[name]
    save(family, tmp_path / "theirs")
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        imported = import_huggingface(tmp_path / "theirs")
    assert not caplog.records
    for option, value in family.ours.items():
        assert getattr(imported.weights.model, option) == value
    comparison = compare_logits(imported.weights, tmp_path / "theirs", torch.float32)
    assert comparison.largest_logit > 0.1
    assert comparison.largest_difference <= 1e-5

    imported.keep(tmp_path / "kept")
    exported = export_huggingface(
        imported.weights,
        tmp_path / "again",
        data=imported.data_options(tmp_path / "kept"),
        kept=tmp_path / "kept",
        architecture=imported.architecture.model_type,
    )
    assert exported.architecture is imported.architecture
    assert exported.architecture.name == family.class_name
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) and tensor.dtype == after[key].dtype for key, tensor in before.items())
    old, new = (_as_transformers_reads(tmp_path / folder) for folder in ("theirs", "again"))
    changed = {key: (value, new.get(key)) for key, value in old.items() if value != new.get(key)}
    # A width that follows from others is spelt out.
    assert changed.keys() <= {"n_inner"}, changed


@pytest.mark.parametrize("architecture", [one for classes in ARCHITECTURES.values() for one in classes])
def test_defaults_are_those_of_transformers(architecture: Architecture) -> None:
    from transformers import AutoConfig

    from megatron_ds.checkpoint.huggingface.config_file import to_model

    theirs = json.loads(AutoConfig.for_model(architecture.model_type).to_json_string())
    assert to_model(architecture, {}, "empty") == to_model(architecture, theirs, "whole")
    known = {key for entry in architecture.entries for key in entry.keys} | set(architecture.fixed)
    assert set(architecture.fixed) <= set(theirs)
    assert {key for key in known if key not in theirs} <= _OLDER | {
        *("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "n_embed"),
        *("seq_length", "head_dim", "partial_rotary_factor", "position_embedding_type"),
        *("id2label", "label2id", "num_labels", "_num_labels"),
    }
