"""``megatron-ds checkpoint``: what was trained at TP2 x PP2 x DP2, looked at, checked, merged and cut anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file as load_safetensors

from benchmarks.tiny_run import MODELS, Case, TinyRun
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.checkpoint.zero_pieces import STATES
from megatron_ds.cli.checkpoint_tools import main
from megatron_ds.engine.weights import full_weights
from megatron_ds.errors import CheckpointError
from tests.checkpoint.listing import list_anew
from tests.dist.pool import run_ranks

CASE = Case(tp=2, pp=2, dp=2, zero=1, precision="bf16", more=MODELS["Llama 3.1"], tied=False)


def _train(case: Case, folder: Path) -> dict[str, torch.Tensor] | None:
    tiny = TinyRun(case)
    for step in range(2):
        tiny.train_step(step)
    tiny.save(folder)
    return full_weights(tiny.engine, tiny.mpu)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A run's folder, and the weights that its ranks held."""
    folder = tmp_path_factory.mktemp("trained")
    weights = run_ranks(8, _train, case=CASE, folder=folder)[0]
    return folder, weights


def _code_of(*argv: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in argv])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_merge_gives_the_weights_that_the_ranks_held(trained, tmp_path, name):
    folder, held = trained
    main(["merge", "--input", str(folder), "--output", str(tmp_path / name)])
    merged = load_safetensors(tmp_path / name) if name.endswith("safetensors") else torch.load(tmp_path / name)
    assert list(merged) == list(held) or set(merged) == set(held)
    for key, tensor in held.items():
        assert merged[key].dtype == torch.bfloat16
        assert torch.equal(merged[key], tensor), key
    if name.endswith("safetensors"):
        with safe_open(tmp_path / name, "pt") as file:
            assert json.loads(file.metadata()["model"])["num_layers"] == 4


def test_to_fp32_gives_the_optimizers_weights(trained, tmp_path):
    folder, held = trained
    main(["to-fp32", "--input", str(folder), "--output", str(tmp_path / "fp32.safetensors")])
    merged = load_safetensors(tmp_path / "fp32.safetensors")
    assert {tensor.dtype for tensor in merged.values()} == {torch.float32}
    assert all(torch.equal(merged[key].bfloat16(), tensor) for key, tensor in held.items())
    assert any(not torch.equal(merged[key], tensor.float()) for key, tensor in held.items())


@pytest.mark.parametrize(("tp", "pp"), [(4, 1), (1, 4), (1, 1)])
def test_reshard_changes_files_and_no_number(trained, tmp_path, tp, pp, capsys):
    folder, _ = trained
    main(["reshard", "--input", str(folder), "--output", str(tmp_path), "--target-tp", str(tp), "--target-pp", str(pp)])
    first, second = open_checkpoint(folder), open_checkpoint(tmp_path)
    layout = second.manifest.layout
    assert (layout.tp_size, layout.pp_size, len(second.manifest.stages)) == (tp, pp, pp)
    assert len(list(second.folder.glob("layer_02-model_*-model_states.pt"))) == tp
    assert second.manifest.progress == first.manifest.progress
    for name in first.specs:
        for kind in ("weights", *STATES):
            assert torch.equal(first.read(name, kind), second.read(name, kind)), (name, kind)
    assert _code_of("diff", folder, tmp_path) == 0
    assert "to the bit" in capsys.readouterr().out
    assert _code_of("verify", "--input", tmp_path) == 0


def test_reshard_that_does_not_divide_is_refused_with_both_numbers(trained, tmp_path):
    folder, _ = trained
    with pytest.raises(CheckpointError) as caught:
        main(["reshard", "--input", str(folder), "--output", str(tmp_path / "new"), "--target-tp", "3"])
    assert "num_attention_heads 4 is not a multiple of tensor_model_parallel_size 3" in str(caught.value)
    assert "this model can be cut over 1, 2 or 4 tensor-parallel ranks" in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_reshard_into_a_folder_with_a_run_is_refused(trained):
    folder, _ = trained
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        main(["reshard", "--input", str(folder), "--output", str(folder)])


def test_inspect_tells_layout_step_and_shapes(trained, capsys):
    folder, held = trained
    main(["inspect", "--input", str(folder)])
    text = capsys.readouterr().out
    assert "step 2, 16 samples consumed" in text
    assert "TP2 x PP2 x DP2, ZeRO-1, bf16" in text
    assert "layers.*.attention.query_key_value.weight" in text
    main(["inspect", "--input", str(folder), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_parameters"] == sum(tensor.numel() for tensor in held.values())
    assert facts["parameters"]["word_embeddings.weight"] == {
        "shape": [61, 32],
        "dtype": "bfloat16",
        "cut": "vocab",
        "shard": [31, 32],
    }


def test_diff_names_what_differs_and_by_how_much(trained, tmp_path, capsys):
    folder, _ = trained
    main(["reshard", "--input", str(folder), "--output", str(tmp_path)])
    file = next(tmp_path.glob("*/zero/layers.1.mlp.dense_4h_to_h.weight/exp_avg.pt"))
    content = torch.load(file)
    content["param"][0, 0] += 0.5
    torch.save(content, file)
    list_anew(open_checkpoint(tmp_path).folder, file)
    assert _code_of("diff", folder, tmp_path) == 1
    summary, line = capsys.readouterr().out.splitlines()
    assert summary.startswith("exp_avg: 1 parameter with differences: largest |a - b| 0.5, in 1 of")
    assert summary.endswith("most in layers.1.mlp.dense_4h_to_h.weight")
    assert "exp_avg of layers.1.mlp.dense_4h_to_h.weight: largest |a - b| 0.5, in 1 of" in line


def test_diff_folds_layers_and_shows_all_of_them_when_asked(trained, tmp_path, capsys):
    folder, _ = trained
    main(["reshard", "--input", str(folder), "--output", str(tmp_path)])
    for number, change in enumerate((0.0, 0.25, 0.5)):
        file = next(tmp_path.glob(f"*/zero/layers.{number}.mlp.dense_4h_to_h.weight/exp_avg.pt"))
        content = torch.load(file)
        content["param"][0, :2] += change
        torch.save(content, file)
        list_anew(open_checkpoint(tmp_path).folder, file)
    assert _code_of("diff", folder, tmp_path) == 1
    summary, line = capsys.readouterr().out.splitlines()
    assert summary.endswith("most in layers.2.mlp.dense_4h_to_h.weight")
    assert line.startswith("exp_avg of 2 x layers.*.mlp.dense_4h_to_h.weight: largest |a - b| 0.5, in 4 of")
    assert _code_of("diff", folder, tmp_path, "--all") == 1
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_diff_of_a_width_that_is_spelt_out_is_none(trained, tmp_path, capsys):
    folder, _ = trained
    main(["reshard", "--input", str(folder), "--output", str(tmp_path)])
    checkpoint = open_checkpoint(tmp_path)
    file = checkpoint.folder / "manifest.json"
    content = json.loads(file.read_text())
    spelt_out = {"ffn_hidden_size": checkpoint.model.ffn_size, "kv_channels": checkpoint.model.head_size}
    assert any(content["model"][name] is None for name in spelt_out)
    content["model"] |= spelt_out
    file.write_text(json.dumps(content))
    assert _code_of("diff", folder, tmp_path) == 0
    assert "to the bit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", "missing"),
        ("short", "bytes instead of"),
        ("changed", "SHA-256"),
        ("nan", "numbers are not finite"),
        ("copies", "tensor-parallel rank 1 holds another copy than rank 0"),
        ("extra", "the manifest does not list it"),
    ],
)
def test_verify_names_the_bad_file(trained, tmp_path, capsys, damage, words):
    folder, _ = trained
    main(["reshard", "--input", str(folder), "--output", str(tmp_path), "--target-tp", "2"])
    checkpoint = open_checkpoint(tmp_path).folder
    file = checkpoint / "layer_02-model_01-model_states.pt"
    named = file.name
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "changed":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "extra":
        named = "layer_99-model_00-model_states.pt"
        (checkpoint / named).write_bytes(b"x")
    else:
        weights = torch.load(file)
        weights["input_layernorm.weight"][3] = float("nan") if damage == "nan" else 7.0
        torch.save(weights, file)
        list_anew(checkpoint, file)
        named = file.name if damage == "nan" else "layers.0.input_layernorm.weight"
    assert _code_of("verify", "--input", tmp_path) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert named in line
    assert words in line


@pytest.mark.parametrize("files", ["states of another rank", "weights of another step"])
def test_files_that_belong_elsewhere_are_refused_by_name(trained, tmp_path, files):
    folder, _ = trained
    checkpoint = tmp_path / "global_step2"
    shutil.copytree(open_checkpoint(folder).folder, checkpoint)
    names = [f"bf16_zero_pp_rank_0_mp_rank_0{rank}_optim_states.pt" for rank in (0, 1)]
    if files == "states of another rank":
        shutil.copy(checkpoint / names[1], checkpoint / names[0])
        changed = names[0]
    else:
        changed = "layer_02-model_00-model_states.pt"
        weights = torch.load(checkpoint / changed)
        torch.save({name: tensor + 1 for name, tensor in weights.items()}, checkpoint / changed)
    for command in (["reshard", "--output", str(tmp_path / "new")], ["to-fp32", "--output", str(tmp_path / "a.pt")]):
        if command[0] == "to-fp32" and changed != names[0]:
            continue  # it does not open that file
        with pytest.raises(CheckpointError, match=f"{changed} is not the file that was saved"):
            main([command[0], "--input", str(checkpoint), *command[1:]])
