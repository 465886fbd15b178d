"""The model is GPT-2: the same logits as Hugging Face's from the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.tiny_run import SEQ_LENGTH, VOCAB_SIZE, Case, global_batch
from megatron_ds.models import SequentialModel, gpt_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from tests.dist.pool import run_ranks

HEADS, HIDDEN, LAYERS = 4, 32, 4

# Their layer's modules, and ours.
_MODULES = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "attention.query_key_value",
    "attn.c_proj": "attention.dense",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.dense_h_to_4h",
    "mlp.c_proj": "mlp.dense_4h_to_h",
}


def _head_by_head(tensor: Tensor) -> Tensor:
    """Rows ordered (q|k|v, head, width), as they are in GPT-2, to (head, q|k|v, width)."""
    return tensor.view(3, HEADS, HIDDEN // HEADS, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)


def _our_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = {
        "word_embeddings.weight": theirs["transformer.wte.weight"],
        "position_embeddings.weight": theirs["transformer.wpe.weight"],
        "final_layernorm.weight": theirs["transformer.ln_f.weight"],
        "final_layernorm.bias": theirs["transformer.ln_f.bias"],
    }
    for layer in range(LAYERS):
        for their_module, our_module in _MODULES.items():
            for kind in ("weight", "bias"):
                # Their linear layers hold matrices as [in, out].
                tensor = theirs[f"transformer.h.{layer}.{their_module}.{kind}"].t()
                qkv = their_module == "attn.c_attn"
                ours[f"layers.{layer}.{our_module}.{kind}"] = _head_by_head(tensor) if qkv else tensor
    return ours


@pytest.fixture(scope="module")
def gpt2() -> tuple[dict[str, Tensor], Tensor]:
    """Weights of a GPT-2 in which nothing is zero or one, and its logits [B, S, V]."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=SEQ_LENGTH, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_inner=4 * HIDDEN
    )
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms too: a bias of zero can be forgotten and nobody sees it.
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        logits = model(global_batch(0, 4).tokens).logits
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, logits


def _logits(tp: int, weights: dict[str, Tensor]) -> Tensor:
    """Whole logits [B, S, V] of our model with these weights."""
    mpu = ModelParallelUnit.create(tp, 1, torch.device("cpu"))
    model = SequentialModel(gpt_layers(Case(tp).resolve().run.model, mpu)).eval()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shard_spec(parameter).shard(weights[name], mpu.tp_rank, tp))
        slice_of_logits = model(global_batch(0, 4).tokens).transpose(0, 1).contiguous()
    slices = [torch.empty_like(slice_of_logits) for _ in range(tp)]
    dist.all_gather(slices, slice_of_logits, group=mpu.tp_group)
    return torch.cat(slices, -1)[..., :VOCAB_SIZE]


@pytest.mark.parametrize("tp", [1, 2])
def test_logits_are_those_of_transformers(tp: int, gpt2: tuple[dict[str, Tensor], Tensor]) -> None:
    weights, expected = gpt2
    for logits in run_ranks(tp, _logits, tp=tp, weights=_our_weights(weights)):
        assert logits.shape == expected.shape
        assert float((logits - expected).abs().max()) <= 1e-5
    assert float(expected.std()) > 0.1
