"""Files of Megatron-LM and its forks become weights that compute what a textbook model computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_ds.checkpoint.megatron import import_megatron
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.errors import CheckpointError
from megatron_ds.models import SequentialModel, gpt_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from tests.checkpoint.helpers import is_mapped
from tests.checkpoint.megatron.reference import LAYERS, VOCAB, Gpt
from tests.checkpoint.megatron.writers import PADDED, write_bloom, write_classic, write_core, write_microsoft

LLAMA = {"positions": "rope", "groups": 2, "activation": "swiglu", "rms": True, "biases": False, "tied": False}


def logits(weights: ModelWeights, tokens: Tensor) -> Tensor:
    """Of our model with these weights, ``[B, S, V]``."""
    mpu = ModelParallelUnit.offline()
    model = SequentialModel(gpt_layers(weights.model, mpu)).eval()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.specs.keys()
    with torch.no_grad():
        for name, tensor in weights.items():
            assert tuple(tensor.shape) == weights.specs[name].full_shape
            parameters[name].copy_(shard_spec(parameters[name]).shard(tensor, 0, 1))
        output = model(tokens)
    assert isinstance(output, Tensor)
    return output.transpose(0, 1)


def assert_same_logits(weights: ModelWeights, gpt: Gpt) -> None:
    tokens = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(3))
    expected = gpt.logits(tokens)
    assert float(expected.std()) > 0.1
    # Megatron's -10000 and our -inf for masked scores are the same after the softmax.
    assert float((logits(weights, tokens)[..., :VOCAB] - expected).abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("version", "tp", "pp"), [(0, 1, 1), (0, 2, 1), (1, 1, 1), (1, 4, 1), (2, 2, 2), (3, 1, 4), (3, 4, 2)]
)
def test_import_of_classic_version_computes_the_reference(tmp_path: Path, version: float, tp: int, pp: int) -> None:
    gpt = Gpt()
    old = {"stack": "transformer", "attention": "attention"} if version < 2 else {}
    weights = import_megatron(write_classic(tmp_path, gpt, tp, pp, version, **old))
    assert len(list(tmp_path.glob("iter_*/mp_rank_*"))) == tp * pp
    assert_same_logits(weights, gpt)


def test_qkv_orders_of_versions_differ_in_the_files(tmp_path: Path) -> None:
    rows = []
    for version in (0, 1, 2):
        folder = write_classic(tmp_path / str(version), Gpt(), 1, 1, version)
        path = folder / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
        inner = torch.load(path, weights_only=False)["model"]["language_model"]["encoder"]
        rows.append(inner["layers.0.self_attention.query_key_value.bias"])
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    assert not torch.equal(rows[0], rows[2])


MODELS = {
    "untied, GQA, SwiGLU": Gpt(**LLAMA),
    "post-LN, exact GELU": Gpt(post_ln=True, activation="gelu"),
    "no positions, squared ReLU": Gpt(positions="none", activation="squared_relu"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2])
def test_import_of_classic_model_computes_the_reference(tmp_path: Path, name: str, tp: int) -> None:
    gpt = MODELS[name]
    weights = import_megatron(write_classic(tmp_path, gpt, tp, 2))
    assert weights.model.activation == gpt.activation
    assert weights.model.num_kv_heads == gpt.groups
    assert weights.model.untie_embeddings_and_output_weights is not gpt.tied
    assert_same_logits(weights, gpt)


@pytest.mark.parametrize("transformer_engine", [False, True])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("gpt", [Gpt(), Gpt(**LLAMA, qk_norm=True, window=5)], ids=["gpt", "llama"])
def test_import_of_core_computes_the_reference(
    tmp_path: Path, gpt: Gpt, tp: int, pp: int, transformer_engine: bool
) -> None:
    weights = import_megatron(write_core(tmp_path, gpt, tp, pp, transformer_engine=transformer_engine))
    assert weights.model.qk_layernorm is gpt.qk_norm
    assert weights.model.normalization == ("RMSNorm" if gpt.rms else "LayerNorm")
    assert_same_logits(weights, gpt)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_import_of_bloom_folder_computes_the_reference(tmp_path: Path, tp: int) -> None:
    gpt = Gpt(positions="alibi", embed_norm=True)
    weights = import_megatron(write_bloom(tmp_path, gpt, tp))
    assert (weights.model.position_embedding_type, weights.model.embed_layernorm) == ("alibi", True)
    assert len(list(tmp_path.glob("global_step7/layer_*"))) == tp * (LAYERS + 2)
    assert_same_logits(weights, gpt)


@pytest.mark.parametrize("activation", ["geglu", "swiglu"])
def test_import_of_bloom_gated_mlp_takes_the_value_first(tmp_path: Path, activation: str) -> None:
    gpt = Gpt(positions="rope", activation=activation)
    weights = import_megatron(write_bloom(tmp_path, gpt, 2))
    assert weights.model.activation == activation
    assert_same_logits(weights, gpt)


@pytest.mark.parametrize("first_block", [2, 3])
@pytest.mark.parametrize("gpt", [Gpt(), Gpt(**LLAMA)], ids=["gpt", "llama"])
def test_import_of_microsoft_folder_computes_the_reference(tmp_path: Path, gpt: Gpt, first_block: int) -> None:
    weights = import_megatron(write_microsoft(tmp_path, gpt, 2, first_block))
    assert weights.model.position_embedding_type == ("rope" if gpt.positions == "rope" else "learned_absolute")
    assert_same_logits(weights, gpt)


def test_import_of_deepspeed_without_pipeline_reads_the_module(tmp_path: Path) -> None:
    gpt = Gpt()
    write_classic(tmp_path, gpt, 2, 1)
    tag = tmp_path / "global_step7"
    tag.mkdir()
    for rank in range(2):
        path = tmp_path / "iter_0000007" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
        content = torch.load(path, weights_only=False)
        content["module"] = content.pop("model")
        torch.save(content, tag / f"mp_rank_{rank:02d}_model_states.pt")
    assert_same_logits(import_megatron(tag), gpt)


def test_import_of_interleaved_schedule_orders_its_chunks(tmp_path: Path) -> None:
    gpt = Gpt()
    folder = write_classic(tmp_path, gpt, 1, 2, chunks=2)
    assert "model1" in torch.load(next(folder.glob("iter_*/*/*.pt")), weights_only=False)
    assert_same_logits(import_megatron(folder), gpt)


def test_import_of_old_torch_format_computes_the_reference(tmp_path: Path) -> None:
    gpt = Gpt()
    folder = write_classic(tmp_path, gpt, 2, 2, zipped=False)
    assert next(folder.glob("iter_*/*/*.pt")).read_bytes()[:2] != b"PK"
    assert_same_logits(import_megatron(folder), gpt)


def test_import_counts_padding_as_token_ids_where_nothing_else_is_known(tmp_path: Path) -> None:
    weights = import_megatron(write_classic(tmp_path, Gpt(), 2, 1))
    assert weights.model.vocab_size == PADDED
    given = weights.model.model_copy(update={"vocab_size": VOCAB})
    cut = import_megatron(tmp_path, given)
    assert cut.model.vocab_size == VOCAB
    assert torch.equal(cut.read("word_embeddings.weight"), Gpt().outer["embeddings"])


def test_import_reads_one_parameter_from_mapped_files(tmp_path: Path) -> None:
    folder = write_classic(tmp_path, Gpt(), 1, 1)
    weights = import_megatron(folder)
    assert is_mapped(weights.read("layers.0.mlp.dense_4h_to_h.weight"), next(folder.glob("iter_*/*/*.pt")))


@pytest.mark.parametrize("write", [write_bloom, write_microsoft])
def test_import_of_drifted_copies_is_refused_until_their_mean_is_asked_for(
    tmp_path: Path, write: Callable[[Path, Gpt, int], Path]
) -> None:
    gpt = Gpt()
    folder = write(tmp_path, gpt, 2)
    path = sorted(folder.glob("global_step7/layer_*-model_01-*"))[-1]
    state = torch.load(path)
    torch.save({**state, "bias": state["bias"] + 0.5}, path)
    with pytest.raises(CheckpointError, match=r"final_layernorm.bias is not the same on all 2 .* up to 0.25"):
        import_megatron(folder).read("final_layernorm.bias")
    read = import_megatron(folder, average_copies=True).read("final_layernorm.bias")
    assert torch.allclose(read, gpt.outer["final.bias"] + 0.25)
