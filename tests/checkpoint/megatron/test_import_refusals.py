"""Checkpoints that can't be read, or not as the model that they describe, are refused with every reason."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_ds.checkpoint.megatron import import_megatron
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError
from tests.checkpoint.megatron.reference import HEADS, HIDDEN, LAYERS, POSITIONS, VOCAB, Gpt
from tests.checkpoint.megatron.writers import write_bloom, write_classic, write_core, write_microsoft


def edit(path: Path, **changes: Any) -> None:
    """Changes keys of a file's content; None takes a key away."""
    content = {**torch.load(path, weights_only=False), **changes}
    torch.save({name: value for name, value in content.items() if value is not None}, path)


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("iter_*/*/model_optim_rng.pt")
    return path


def test_import_of_options_without_counterpart_names_all_of_them(tmp_path: Path) -> None:
    folder = write_core(
        tmp_path, Gpt(), 1, 1, num_experts=8, multi_latent_attention=True, position_embedding_type="mrope"
    )
    with pytest.raises(CheckpointError) as error:
        import_megatron(folder)
    assert len(error.value.problems) == 3
    for option in ("num_experts=8", "multi_latent_attention=True", "position_embedding_type=mrope"):
        assert option in str(error.value)


def test_import_with_one_plus_layernorm_is_refused(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(), 1, 1, apply_layernorm_1p=True)
    with pytest.raises(CheckpointError, match="apply_layernorm_1p=True"):
        import_megatron(folder)


def test_import_of_bloom_with_another_epsilon_is_refused(tmp_path: Path) -> None:
    folder = write_bloom(tmp_path, Gpt(positions="alibi", embed_norm=True), 1, layernorm_epsilon=1e-6)
    with pytest.raises(CheckpointError, match="layernorm_epsilon=1e-06"):
        import_megatron(folder)


@pytest.mark.parametrize("layers", [False, True])
def test_import_without_a_rank_names_its_file(tmp_path: Path, layers: bool) -> None:
    folder = write_bloom(tmp_path, Gpt(), 2) if layers else write_classic(tmp_path, Gpt(), 2, 2)
    lost = "global_step7/layer_04-model_00-model_states.pt" if layers else "iter_0000007/mp_rank_00_001"
    (folder / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=Path(lost).name):
        import_megatron(folder)


def test_import_without_a_block_says_which(tmp_path: Path) -> None:
    folder = write_bloom(tmp_path, Gpt(), 1)
    (folder / "global_step7/layer_04-model_00-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="layer 4 between the others is missing"):
        import_megatron(folder)
    (folder / "global_step7/layer_03-model_00-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match=rf"lack weights.*layers\.{LAYERS - 2}\.input_layernorm"):
        import_megatron(folder)


def test_import_without_all_files_of_a_rank_is_refused_by_its_shapes(tmp_path: Path) -> None:
    folder = write_bloom(tmp_path, Gpt(), 4)
    for path in folder.glob("global_step7/layer_*-model_03-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"on each of 3 ranks, for \[96, 32\] in all"):
        import_megatron(folder)


def test_import_of_a_model_with_more_weights_lists_them(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(positions="rope"), 1, 1)
    path = only_file(folder)
    model = torch.load(path, weights_only=False)["model"]
    model["binary_head"] = {"weight": torch.ones(2)}
    # Learned positions beside rotary ones, as early versions allowed.
    model["language_model"]["embedding"]["position_embeddings"] = {"weight": torch.ones(POSITIONS, HIDDEN)}
    edit(path, model=model)
    with pytest.raises(CheckpointError, match=r"binary_head\.weight") as error:
        import_megatron(folder)
    assert "position_embeddings.weight" in str(error.value)


def test_import_of_weights_of_another_shape_says_both(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(), 2, 1, ffn_hidden_size=64)
    with pytest.raises(CheckpointError, match=r"mlp\.dense_h_to_4h\.weight is \[24, 32\] on each of 2 ranks"):
        import_megatron(folder)


def test_import_of_a_tied_model_with_another_head_is_refused(tmp_path: Path) -> None:
    folder = write_core(tmp_path, Gpt(tied=False), 1, 2, untie_embeddings_and_output_weights=False)
    weights = import_megatron(folder)
    with pytest.raises(CheckpointError, match="untie_embeddings_and_output_weights"):
        weights.read("word_embeddings.weight")


def test_import_of_files_without_arguments_needs_the_model(tmp_path: Path) -> None:
    gpt = Gpt()
    folder = write_microsoft(tmp_path, gpt, 1)
    described = import_megatron(folder)
    (states,) = folder.glob("global_step7/mp_rank_*")
    edit(states, args=None)
    with pytest.raises(CheckpointError, match=r"num_layers, hidden_size.*\n.*--model"):
        import_megatron(folder)
    given = import_megatron(folder, described.model)
    assert given.model == described.model
    assert all(torch.equal(tensor, described.read(name)) for name, tensor in given.items())


def test_import_of_few_arguments_takes_the_rest_from_the_model(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(positions="rope", activation="swiglu", rms=True, biases=False), 1, 1)
    described = import_megatron(folder)
    path = only_file(folder)
    edit(path, args={"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS})
    assert import_megatron(folder, described.model).model == described.model
    edit(path, args={"num_layers": LAYERS, "swiglu": False})
    with pytest.raises(CheckpointError, match="activation is swiglu and there gelu_tanh"):
        import_megatron(folder, described.model)


def test_import_with_another_model_than_the_files_names_each_option(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(), 1, 1)
    sizes = {"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": 2 * POSITIONS}
    # Given in another way, and the same: what is derived, and what a run is free to choose.
    same = ModelConfig(**sizes, ffn_hidden_size=48, kv_channels=8, max_position_embeddings=POSITIONS, vocab_size=VOCAB)
    assert import_megatron(folder, same).model == same
    other = same.model_copy(update={"activation": "gelu", "num_query_groups": 2})
    with pytest.raises(CheckpointError) as error:
        import_megatron(folder, other)
    assert len(error.value.problems) == 2
    for text in ("activation is gelu and there gelu_tanh", "num_query_groups is 2 and there 4", "--model"):
        assert text in str(error.value)


def test_import_of_a_distributed_checkpoint_tells_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "iter_0000001").mkdir()
    (tmp_path / "iter_0000001" / ".metadata").touch()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    with pytest.raises(CheckpointError, match="--ckpt-convert-format torch"):
        import_megatron(tmp_path)


def test_import_of_neox_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_microsoft(tmp_path, Gpt(), 1)
    last = sorted(folder.glob("global_step7/layer_*"))[-1]
    state = torch.load(last)
    torch.save({f"norm.{name}": tensor for name, tensor in state.items()}, last)
    with pytest.raises(CheckpointError, match="GPT-NeoX"):
        import_megatron(folder)


@pytest.mark.parametrize("content", ["empty", "tracker", "nothing"])
def test_import_of_a_folder_without_checkpoint_says_what_is_looked_for(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "in"
    if content != "nothing":
        folder.mkdir()
    if content == "tracker":
        (folder / "latest_checkpointed_iteration.txt").write_text("5")
    expected = {"empty": "mp_rank_00/model_optim_rng.pt", "tracker": "iter_0000005", "nothing": "there is no folder"}
    with pytest.raises(CheckpointError, match=expected[content]):
        import_megatron(folder)


def test_import_of_arguments_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(), 1, 1)
    path = only_file(folder)
    arguments = vars(torch.load(path, weights_only=False)["args"])
    edit(path, args=Namespace(**{**arguments, "num_layers": "many"}))
    with pytest.raises(CheckpointError, match="num_layers"):
        import_megatron(folder)
    edit(path, args=Namespace(**{**arguments, "window_size": 5}))
    with pytest.raises(CheckpointError, match="of a kind that Megatron doesn't save"):
        import_megatron(folder)
