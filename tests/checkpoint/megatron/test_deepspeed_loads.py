"""DeepSpeed itself loads exported pipeline folders into the forks' lists of layers.

The lists are those of `GPTModelPipe` in the forks' megatron/model/gpt_model.py, with layers that hold the same
parameters and compute nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatron_ds.checkpoint.megatron import export_megatron
from tests.checkpoint.megatron.reference import HIDDEN, LAYERS, VOCAB
from tests.checkpoint.megatron.test_export import random_weights
from tests.checkpoint.megatron.writers import PADDED
from tests.dist.pool import run_ranks


def _tree(**children: nn.Module) -> nn.Module:
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


class ParallelTransformerLayerPipe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(HIDDEN)
        self.self_attention = _tree(query_key_value=nn.Linear(HIDDEN, 3 * HIDDEN), dense=nn.Linear(HIDDEN, HIDDEN))
        self.post_attention_layernorm = nn.LayerNorm(HIDDEN)
        self.mlp = _tree(dense_h_to_4h=nn.Linear(HIDDEN, 4 * HIDDEN), dense_4h_to_h=nn.Linear(4 * HIDDEN, HIDDEN))


class EmbeddingPipe(nn.Module):
    def __init__(self, has_norm: bool) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(PADDED, HIDDEN)
        if has_norm:
            self.word_embeddings.norm = nn.LayerNorm(HIDDEN)
        else:
            self.position_embeddings = nn.Embedding(16, HIDDEN)

    @property
    def word_embeddings_weight(self) -> Tensor:
        return self.word_embeddings.weight


class LMHeadPipe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lm_head = nn.Linear(HIDDEN, PADDED, bias=False)


def _unchanged(inputs: Any) -> Any:
    return inputs


def _layers(layout: str) -> list[Any]:
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    blocks = [LayerSpec(ParallelTransformerLayerPipe) for _ in range(LAYERS)]
    norm = LayerSpec(nn.LayerNorm, HIDDEN)
    if layout == "microsoft":
        return [_unchanged, LayerSpec(EmbeddingPipe, False), *blocks, norm, LayerSpec(LMHeadPipe)]
    tied: dict[str, Any] = {"tied_weight_attr": "word_embeddings_weight"}
    first = TiedLayerSpec("embed", EmbeddingPipe, True, **tied)
    last = TiedLayerSpec("embed", EmbeddingPipe, True, forward_fn=lambda _, inputs: inputs, **tied)
    return [_unchanged, first, _unchanged, *blocks, _unchanged, norm, last]


def _load(layout: str, folder: Path) -> dict[str, Tensor]:
    """This stage's parameters by the number of their layer, loaded by DeepSpeed."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    model = PipelineModule(layers=_layers(layout), num_stages=2, partition_method="type:transformer")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 1})[0]
    path, states = engine.load_checkpoint(str(folder), load_optimizer_states=False, load_lr_scheduler_states=False)
    assert path is not None
    assert (engine.global_steps, states["iteration"]) == (7, 7)
    return {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}


@pytest.mark.parametrize("layout", ["bloom", "microsoft"])
def test_deepspeed_loads_an_exported_folder(tmp_path: Path, layout: str) -> None:
    own = {"bloom": {"position_embedding_type": "alibi", "embed_layernorm": True}}
    weights = random_weights(**own.get(layout, {"untie_embeddings_and_output_weights": True}))
    export_megatron(weights, tmp_path, layout=layout, pp_size=2, iteration=7)
    first, last = run_ranks(2, _load, layout=layout, folder=tmp_path)
    first_block, embed = (3, "tied_modules.embed") if layout == "bloom" else (2, "1")
    norm = first_block + LAYERS + (layout == "bloom")
    expected = {
        f"{embed}.word_embeddings.weight": (first, "word_embeddings.weight"),
        f"{first_block}.self_attention.query_key_value.weight": (first, "layers.0.attention.query_key_value.weight"),
        f"{first_block + 1}.mlp.dense_h_to_4h.bias": (first, "layers.1.mlp.dense_h_to_4h.bias"),
        f"{first_block + 3}.post_attention_layernorm.bias": (last, "layers.3.post_attention_layernorm.bias"),
        f"{norm}.weight": (last, "final_layernorm.weight"),
    }
    if layout == "bloom":
        expected[f"{embed}.word_embeddings.norm.bias"] = (first, "embed_layernorm.bias")
    else:
        expected["1.position_embeddings.weight"] = (first, "position_embeddings.weight")
        expected[f"{norm + 1}.lm_head.weight"] = (last, "lm_head.weight")
    for name, (stage, ours) in expected.items():
        loaded = stage[name][:VOCAB] if "word_embeddings.w" in name or "lm_head" in name else stage[name]
        assert torch.equal(loaded, weights.read(ours).float()), name
