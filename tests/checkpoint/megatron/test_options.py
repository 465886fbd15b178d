"""The command-line options of Megatron's formats."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megatron_ds.checkpoint.megatron import import_megatron
from megatron_ds.cli.checkpoint_megatron import add_export_arguments, add_import_arguments, run_export, run_import
from megatron_ds.errors import ConfigError
from tests.checkpoint.megatron.reference import HEADS, HIDDEN, LAYERS, POSITIONS, VOCAB, Gpt
from tests.checkpoint.megatron.test_export import random_weights
from tests.checkpoint.megatron.writers import write_classic

SIZES = {"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": POSITIONS}


def parse(add: Callable[[argparse.ArgumentParser], None], *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--input")
    parser.add_argument("--output")
    add(parser)
    return parser.parse_args(words)


def test_import_options_give_the_model_of_a_file(tmp_path: Path) -> None:
    folder = write_classic(tmp_path / "in", Gpt(), 2, 1)
    file = tmp_path / "model.json"
    file.write_text(json.dumps({**SIZES, "ffn_hidden_size": 48, "vocab_size": VOCAB}))
    plain = run_import(parse(add_import_arguments, "--input", str(folder)))
    given = run_import(parse(add_import_arguments, "--input", str(folder), "--model", str(file)))
    assert (plain.model.vocab_size, given.model.vocab_size) == (64, VOCAB)


def test_import_options_with_a_wrong_model_name_each_option(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps({**SIZES, "num_layers": 0, "activaton": "gelu"}))
    with pytest.raises(ConfigError) as error:
        run_import(parse(add_import_arguments, "--input", str(tmp_path), "--model", str(file)))
    assert len(error.value.problems) == 2
    assert "num_layers" in str(error.value)
    assert "activaton" in str(error.value)


def test_export_options_reach_the_files(tmp_path: Path) -> None:
    words = ["--layout", "classic", "--target-tp", "2", "--target-pp", "2", "--checkpoint-version", "2", "--output"]
    weights = random_weights()
    run_export(weights, parse(add_export_arguments, *words, str(tmp_path)), iteration=12)
    files = sorted(path.parent.name for path in tmp_path.glob("iter_0000012/*/*.pt"))
    assert files == ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"]
    content = torch.load(tmp_path / "iter_0000012" / files[0] / "model_optim_rng.pt", weights_only=False)
    assert (content["checkpoint_version"], content["iteration"]) == (2.0, 12)
    assert import_megatron(tmp_path).model.num_layers == LAYERS


@pytest.mark.parametrize(("impl", "fused"), [("local", False), ("transformer_engine", True)])
def test_export_option_transformer_impl_names_the_norms(tmp_path: Path, impl: str, fused: bool) -> None:
    run_export(random_weights(), parse(add_export_arguments, "--transformer-impl", impl, "--output", str(tmp_path)))
    (path,) = tmp_path.glob("iter_*/*/*.pt")
    content = torch.load(path, weights_only=False)
    assert ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight" in content["model"]) is fused
    assert content["args"].transformer_impl == impl


def test_export_options_refuse_a_size_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(add_export_arguments, "--target-tp", "0")
    assert "0 is below 1" in capsys.readouterr().err
