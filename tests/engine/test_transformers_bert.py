"""The model is the published BERT: the scores of both heads are those of transformers from the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.tiny_bert import bert_batch
from benchmarks.tiny_run import MODELS, SEQ_LENGTH, VOCAB_SIZE, Case
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.models import SequentialModel, bert_layers
from megatron_ds.mpu import ModelParallelUnit, shard_spec
from tests.dist.pool import run_ranks

HEADS, HIDDEN, LAYERS = 4, 32, 4

# Their modules, and ours: around the layers, and in each layer, whose first norm stands at the end of what precedes it.
_AROUND = {
    "bert.embeddings.word_embeddings": "word_embeddings",
    "bert.embeddings.token_type_embeddings": "tokentype_embeddings",
    "bert.embeddings.position_embeddings": "position_embeddings",
    "bert.embeddings.LayerNorm": "layers.0.input_layernorm",
    f"bert.encoder.layer.{LAYERS - 1}.output.LayerNorm": "final_layernorm",
    "bert.pooler.dense": "pooler.dense",
    "cls.seq_relationship": "binary_head",
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layernorm",
    "cls.predictions": "lm_head",
} | {
    f"bert.encoder.layer.{layer}.output.LayerNorm": f"layers.{layer + 1}.input_layernorm" for layer in range(LAYERS - 1)
}
_IN_LAYER = {
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "post_attention_layernorm",
    "intermediate.dense": "mlp.dense_h_to_4h",
    "output.dense": "mlp.dense_4h_to_h",
}
_QKV = ("query", "key", "value")


def _our_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    modules = _AROUND | {
        f"bert.encoder.layer.{layer}.{their}": f"layers.{layer}.{our}"
        for layer in range(LAYERS)
        for their, our in _IN_LAYER.items()
    }
    ours = {
        f"{our}.{kind}": theirs[f"{their}.{kind}"]
        for their, our in modules.items()
        for kind in ("weight", "bias")
        if f"{their}.{kind}" in theirs
    }
    for layer in range(LAYERS):
        for kind in ("weight", "bias"):
            parts = [theirs[f"bert.encoder.layer.{layer}.attention.self.{name}.{kind}"] for name in _QKV]
            # (q|k|v, head, width) to (head, q|k|v, width)
            heads = torch.stack(parts).view(3, HEADS, HIDDEN // HEADS, *parts[0].shape[1:]).transpose(0, 1)
            ours[f"layers.{layer}.attention.query_key_value.{kind}"] = heads.reshape(-1, *parts[0].shape[1:])
    return ours


def _batch() -> BertBatch:
    return bert_batch(
        0, 4, SEQ_LENGTH, VOCAB_SIZE, lambda _, samples, length: torch.ones(samples, length), binary_head=True
    )


@pytest.fixture(scope="module")
def bert() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Weights in which nothing is zero or one, and the scores of the tokens [B, S, V] and of the order [B, 2]."""
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=SEQ_LENGTH,
        layer_norm_eps=1e-5,
    )
    model = BertForPreTraining._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    batch = _batch()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms too: a bias of zero can be forgotten and nobody sees it.
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        scores = model(batch.tokens, attention_mask=batch.padding_mask, token_type_ids=batch.token_types)
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return weights, scores.prediction_logits, scores.seq_relationship_logits


def _scores(tp: int, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What our model says with these weights: of all tokens [B, S, V], and of the order [B, 2]."""
    mpu = ModelParallelUnit.create(tp, 1, torch.device("cpu"))
    model = SequentialModel(bert_layers(Case(tp, more=MODELS["BERT"]).resolve().run.model, mpu)).eval()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shard_spec(parameter).shard(weights[name], mpu.tp_rank, tp))
        outputs = model(_batch().inputs)
    own = outputs[0].transpose(0, 1).contiguous()
    slices = [torch.empty_like(own) for _ in range(tp)]
    dist.all_gather(slices, own, group=mpu.tp_group)
    return torch.cat(slices, -1)[..., :VOCAB_SIZE], outputs[1]


@pytest.mark.parametrize("tp", [1, 2])
def test_scores_of_both_heads_are_those_of_transformers(
    tp: int, bert: tuple[dict[str, Tensor], Tensor, Tensor]
) -> None:
    weights, tokens, order = bert
    is_token = _batch().padding_mask.bool()
    assert not is_token.all()
    assert float(tokens.std()) > 0.1
    for our_tokens, our_order in run_ranks(tp, _scores, tp=tp, weights=_our_weights(weights)):
        assert our_tokens.shape == tokens.shape
        # Theirs lets padding see the text; what comes out of it counts nowhere.
        torch.testing.assert_close(our_tokens[is_token], tokens[is_token], rtol=0, atol=2e-5)
        torch.testing.assert_close(our_order, order, rtol=0, atol=2e-5)
