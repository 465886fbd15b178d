"""The two commands, from a checkpoint on disk to a folder of transformers and back."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

from megatron_ds.checkpoint.manifest import Layout, Manifest
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.cli import checkpoint_export, checkpoint_tools, weights_progress
from megatron_ds.config.blocks import DataConfig, ModelConfig
from megatron_ds.config.resolve import resolve
from megatron_ds.errors import CheckpointError, ConfigError
from megatron_ds.models import model_layers
from megatron_ds.mpu import ModelParallelUnit, ShardSpec
from megatron_ds.tokenizers.build import build_tokenizer
from tests.checkpoint.huggingface.families import FAMILIES, save
from tests.dist.pool import ROOT
from tests.full_disk import full_disk

STEP = 7


def _write(folder: Path, options: dict[str, Any] | None = None, **model_options: Any) -> dict[str, Tensor]:
    """A checkpoint of whole parameters in bf16, with fp32 ones of an optimizer, and its fp32 parameters."""
    model = ModelConfig(
        **{"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "vocab_size": 67},
        **model_options,
    )
    specs = model_specs(model)
    layers = [layer.tied_to or layer.name for layer in model_layers(model, ModelParallelUnit.offline())]
    manifest = Manifest(
        progress={"step": STEP, "skipped_steps": 0, "consumed_samples": 0},
        layout=Layout(1, 1, 1, 0, "bf16"),
        model=model.model_dump(),
        parameters={name: spec.to_json() for name, spec in specs.items()},
        options=options or {},
        layers=layers,
        stages=[[0, len(layers)]],
        kind="parameters",
    )
    checkpoint = folder / f"global_step{STEP}"
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(spec.full_shape, generator=generator) * 0.2 for name, spec in specs.items()}
    by_layer: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        (checkpoint / "zero" / name).mkdir(parents=True)
        torch.save({"param": tensor}, checkpoint / "zero" / name / "fp32.pt")
        owner = max((layer for layer in layers if name.startswith(f"{layer}.")), key=len)
        by_layer[owner][name.removeprefix(f"{owner}.")] = specs[name].shard(tensor.bfloat16(), 0, 1)
    for owner, weights in by_layer.items():
        torch.save(weights, checkpoint / f"layer_{layers.index(owner):02d}-model_00-model_states.pt")
    manifest.write(checkpoint)
    (folder / "latest").write_text(checkpoint.name)
    return tensors


def _export(source: Path, output: Path, *more: str) -> None:
    checkpoint_export.main(["--format", "hf", "--input", str(source), "--output", str(output), *more])


def test_export_writes_and_checks_the_weights_of_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = _write(tmp_path / "run")
    with caplog.at_level(logging.INFO, "megatron_ds"):
        _export(tmp_path / "run", tmp_path / "out", "--check")
    written = load_file(tmp_path / "out" / "model.safetensors")
    embeddings = written["transformer.wte.weight"]
    assert embeddings.dtype == torch.bfloat16
    assert torch.equal(embeddings, tensors["word_embeddings.weight"].bfloat16())
    messages = [record.getMessage() for record in caplog.records]
    assert any("GPT2LMHeadModel, bfloat16 in 1 file(s)" in message for message in messages)
    assert any("no tokenizer was written: the checkpoint names no tokenizer" in message for message in messages)
    assert any(message.startswith("largest |Δlogit|") for message in messages)


def test_export_in_fp32_takes_the_weights_of_the_optimizer(tmp_path: Path) -> None:
    tensors = _write(tmp_path / "run")
    checkpoint = tmp_path / "run" / f"global_step{STEP}"
    _export(checkpoint, tmp_path / "out", "--dtype", "fp32", "--check", "--max-shard-size", "20KB")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    file = index["weight_map"]["transformer.wpe.weight"]
    assert torch.equal(
        load_file(tmp_path / "out" / file)["transformer.wpe.weight"], tensors["position_embeddings.weight"]
    )


def test_export_writes_the_end_of_a_text_of_the_run(tmp_path: Path) -> None:
    _write(tmp_path / "run", {"data": {"tokenizer_type": "NullTokenizer", "eod_id": 0}})
    _export(tmp_path / "run", tmp_path / "out", "--step", str(STEP))
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {"eos_token_id": 0}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    # Said as null, because the class has others by default.
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (None, 0, None)


def test_export_of_what_can_not_be_expressed_writes_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "run", residual_connection="deepnorm")
    with pytest.raises(ConfigError, match="--residual-connection deepnorm can't be written"):
        _export(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("size", ["0", "5TB", "-1", "GB", "0.1"])
def test_size_that_is_none_is_refused(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _export(tmp_path, tmp_path / "out", f"--max-shard-size={size}")
    assert f"{size!r} is no size such as 5GB" in capsys.readouterr().err


def test_help_of_a_format_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, has_own in ((["--help"], False), (["--format", "hf", "--help"], True)):
        with pytest.raises(SystemExit):
            checkpoint_export.main(arguments)
        assert ("--max-shard-size" in capsys.readouterr().out) == has_own


def _import(source: Path, output: Path, *more: str) -> None:
    checkpoint_tools.main(["import", "--from", "hf", "--input", str(source), "--output", str(output), *more])


@pytest.mark.parametrize("name", ["opt", "pythia", "qwen3", "bert, 3 classes"])
def test_import_and_export_give_every_file_back(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = tmp_path / "theirs"
    save(FAMILIES[name], theirs)
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    backend.save(str(theirs / "tokenizer.json"))
    (theirs / "tokenizer_config.json").write_text('{"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}')
    with caplog.at_level(logging.INFO, "megatron_ds"):
        _import(theirs, tmp_path / "run", "--check")
    assert any(record.getMessage().startswith("largest |Δlogit|") for record in caplog.records)
    data = open_checkpoint(tmp_path / "run").manifest.options["data"]
    assert build_tokenizer(DataConfig(**data)).eod_id == 1

    # Moved, so that the options' own path is gone.
    (tmp_path / "run").rename(tmp_path / "moved")
    _export(tmp_path / "moved", tmp_path / "again", "--check")
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (theirs / file).read_bytes()
    if not name.startswith("bert"):
        files = [folder / "generation_config.json" for folder in (theirs, tmp_path / "again")]
        old, new = (json.loads(file.read_text()) for file in files)
        assert old == new


def test_bert_of_ours_goes_out_and_comes_back_with_its_word_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s")))
    data = {"tokenizer_type": "BertWordPieceCase", "vocab_file": str(vocab)}
    bert = {"model_type": "bert", "residual_connection": "post_ln", "bert_binary_head": False}
    tensors = _write(tmp_path / "run", {"data": data}, **bert)
    with caplog.at_level(logging.INFO, "megatron_ds"):
        _export(tmp_path / "run", tmp_path / "theirs", "--check")
        _import(tmp_path / "theirs", tmp_path / "back", "--check")
    assert sum("texts have the same ids" in message for message in caplog.messages) == 2
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (config["architectures"], config["pad_token_id"]) == (["BertForMaskedLM"], 0)
    assert not (tmp_path / "theirs" / "generation_config.json").exists()
    back = open_checkpoint(tmp_path / "back")
    assert all(torch.equal(back.read(name), tensor.bfloat16()) for name, tensor in tensors.items())
    # Theirs has an embedding of token types, which is zero.
    assert set(back.specs) - set(tensors) == {"tokentype_embeddings.weight"}
    assert not back.read("tokentype_embeddings.weight").any()
    # Our ids of [BOS] and [EOS] too, and so the model goes on with the data that it was trained on.
    assert build_tokenizer(DataConfig(**back.manifest.options["data"])).vocab_size == 9


def test_import_of_a_model_without_token_scores_tells_how_to_finetune_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(FAMILIES["bert, choices"], tmp_path / "theirs")
    with caplog.at_level(logging.INFO, "megatron_ds"):
        _import(tmp_path / "theirs", tmp_path / "run")
    assert f"--pretrained-checkpoint {tmp_path / 'run'} " in caplog.messages[-1]


@pytest.mark.parametrize(("given", "expected"), [((), "bf16"), (("--dtype", "fp32"), "fp32")])
def test_import_keeps_the_dtype_or_casts(given: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    model = save(FAMILIES["mistral"], tmp_path / "theirs")
    model.bfloat16().save_pretrained(tmp_path / "theirs")
    _import(tmp_path / "theirs", tmp_path / "run", "--check", *given)
    reader = open_checkpoint(tmp_path / "run")
    assert reader.manifest.layout.precision == expected
    assert reader.read("final_layernorm.weight").dtype == {"bf16": torch.bfloat16, "fp32": torch.float32}[expected]
    assert not reader.has_optimizer


def test_import_in_fewer_digits_is_checked_with_theirs_rounded_alike(tmp_path: Path) -> None:
    save(FAMILIES["llama 3.1"], tmp_path / "theirs")
    _import(tmp_path / "theirs", tmp_path / "run", "--check", "--dtype", "bf16")
    assert open_checkpoint(tmp_path / "run").manifest.layout.precision == "bf16"


def test_import_into_a_run_is_refused(tmp_path: Path) -> None:
    save(FAMILIES["gpt2"], tmp_path / "theirs")
    _write(tmp_path / "run")
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        _import(tmp_path / "theirs", tmp_path / "run")
    assert not (tmp_path / "run" / "huggingface").exists()


def test_conversion_needs_no_transformers(tmp_path: Path) -> None:
    save(FAMILIES["pythia"], tmp_path / "theirs")
    program = """
import sys
sys.modules["transformers"] = None  # importing it fails
from megatron_ds.cli import checkpoint_tools
theirs, run, again = sys.argv[1:]
checkpoint_tools.main(["import", "--from", "hf", "--input", theirs, "--output", run])
checkpoint_tools.main(["export", "--format", "hf", "--input", run, "--output", again])
"""
    folders = [str(tmp_path / name) for name in ("theirs", "run", "again")]
    subprocess.run([sys.executable, "-c", program, *folders], check=True, cwd=ROOT)
    assert (tmp_path / "again" / "model.safetensors").is_file()


def test_progress_counts_what_is_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(weights_progress, "_SECONDS_BETWEEN_LINES", 0.0)
    specs = {"first": ShardSpec("replicated", (1,)), "second": ShardSpec("replicated", (1,))}
    model = ModelConfig(num_layers=1, hidden_size=4, num_attention_heads=1, seq_length=4, vocab_size=4)
    weights = ModelWeights(model, specs, lambda name: torch.ones(1))
    with caplog.at_level(logging.INFO, "megatron_ds"), weights_progress.with_progress(weights, "export") as followed:
        assert [name for name, _ in followed.items()] == ["first", "second"]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["export: 1 of 2 parameters", "export: 2 of 2 parameters"]


def test_megatron_is_a_format_too(tmp_path: Path) -> None:
    tensors = _write(tmp_path / "run")
    there, back = str(tmp_path / "megatron"), str(tmp_path / "back")
    checkpoint_tools.main(["export", "--format", "megatron", "--input", str(tmp_path / "run"), "--output", there])
    checkpoint_tools.main(["import", "--from", "megatron", "--input", there, "--output", back])
    reader = open_checkpoint(tmp_path / "back")
    assert reader.manifest.layout.precision == "bf16"
    assert all(torch.equal(reader.read(name), tensor.bfloat16()) for name, tensor in tensors.items())


def _tool(*words: object) -> None:
    checkpoint_tools.main([str(word) for word in words])


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (("merge",), "out.pt"),
        (("to-fp32",), "out.pt"),
        (("merge",), "out.safetensors"),
        (("export", "--format", "megatron"), "out"),
        (("export", "--format", "hf"), "out"),
        (("reshard",), "out"),
    ],
)
def test_full_disk_is_named_as_the_reason_and_nothing_is_left(
    command: tuple[str, ...], output: str, tmp_path: Path
) -> None:
    _write(tmp_path / "run")
    with full_disk(2000), pytest.raises(CheckpointError, match=r"can't be written: .*File too large"):
        _tool(*command, "--input", tmp_path / "run", "--output", tmp_path / output)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (("merge",), "in/x.pt"),
        (("to-fp32",), "x.safetensors"),
        (("reshard",), "in"),
        (("reshard",), "."),
        (("export", "--format", "hf"), "in"),
        (("export", "--format", "megatron"), "in"),
    ],
)
def test_output_in_the_checkpoint_that_is_read_is_refused(
    command: tuple[str, ...], output: str, tmp_path: Path
) -> None:
    _write(tmp_path / "run")
    folder = tmp_path / "run" / f"global_step{STEP}"
    before = sorted(folder.rglob("*"))
    with pytest.raises(CheckpointError, match="the folder that is read"):
        _tool(*command, "--input", tmp_path / "run", "--output", folder / output)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("format_name", ["hf", "megatron"])
@pytest.mark.parametrize("output", [".", "ours"])
def test_import_into_what_is_imported_is_refused(format_name: str, output: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the folder that is read"):
        _tool("import", "--from", format_name, "--input", tmp_path, "--output", tmp_path / output)
    assert not list(tmp_path.iterdir())


def test_reshard_to_a_file_says_that_it_is_one(tmp_path: Path) -> None:
    _write(tmp_path / "run")
    (tmp_path / "out").touch()
    with pytest.raises(CheckpointError, match="out is a file, and a checkpoint is a folder"):
        _tool("reshard", "--input", tmp_path / "run", "--output", tmp_path / "out")


def test_file_of_another_ending_is_refused_with_the_two_that_there_are(tmp_path: Path) -> None:
    _write(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"let the name of --output end in \.safetensors or \.pt"):
        _tool("to-fp32", "--input", tmp_path / "run", "--output", tmp_path / "x.bin")


def _with_entry(folder: Path, name: str, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))


@pytest.mark.parametrize("name", ["opt", "pythia", "qwen3", "llama 3.1"])
def test_import_leaves_a_preset_of_its_model(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(FAMILIES[name], tmp_path / "theirs")
    with caplog.at_level(logging.INFO, "megatron_ds"):
        _import(tmp_path / "theirs", tmp_path / "run")
    preset = tmp_path / "run" / "model.json"
    line = f"--model-preset {preset} --load {tmp_path / 'run'} --finetune --save OTHER"
    assert f"to train on: {line}" in caplog.messages
    data = ["--data-path", "x", "--tokenizer-type", "NullTokenizer"]
    data += ["--train-iters", "1", "--micro-batch-size", "1", "--lr", "1"]
    run = resolve([*line.split(), *data], {}, "pretrain_gpt.py").run
    assert run.model.model_dump() == open_checkpoint(tmp_path / "run").manifest.model
    assert run.model.vocab_size == 67


def test_import_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    save(FAMILIES["gpt2"], tmp_path / "theirs")
    _with_entry(tmp_path / "theirs", "vocab_size", None)
    with pytest.raises(CheckpointError, match=r"config\.json: vocab_size is null"):
        _import(tmp_path / "theirs", tmp_path / "run")


@pytest.mark.parametrize(("name", "value"), [("n_head", "4"), ("eos_token_id", "x")])
def test_check_against_what_transformers_refuses_says_so(name: str, value: str, tmp_path: Path) -> None:
    save(FAMILIES["gpt2"], tmp_path / "theirs")
    _with_entry(tmp_path / "theirs", name, value)
    with pytest.raises(CheckpointError, match=f"transformers can't load .*{name}"):
        _import(tmp_path / "theirs", tmp_path / "run", "--check")


@pytest.mark.parametrize("format_name", ["hf", "megatron"])
def test_checkpoint_of_ours_is_not_imported(format_name: str, tmp_path: Path) -> None:
    _write(tmp_path / "run")
    for folder in (tmp_path / "run", tmp_path / "run" / f"global_step{STEP}"):
        with pytest.raises(CheckpointError, match="holds a checkpoint of megatron_ds already"):
            _tool("import", "--from", format_name, "--input", folder, "--output", tmp_path / "out")


def test_tool_given_weights_of_another_program_names_the_import(tmp_path: Path) -> None:
    _write(tmp_path / "run")
    for format_name in ("hf", "megatron"):
        theirs = tmp_path / format_name
        _tool("export", "--format", format_name, "--input", tmp_path / "run", "--output", theirs)
        with pytest.raises(CheckpointError, match=f"checkpoint import --from {format_name} --input"):
            _tool("inspect", "--input", theirs)


def test_reshard_of_a_damaged_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "run")
    next((tmp_path / "run").glob("*/layer_02-*")).write_bytes(b"damaged")
    with pytest.raises(CheckpointError):
        _tool("reshard", "--input", tmp_path / "run", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()
