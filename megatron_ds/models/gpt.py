"""GPT as one list of layers: the only definition of the model, whatever engine runs it."""

from __future__ import annotations

from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.attention import AttentionScheme
from megatron_ds.models.documents import (
    DocumentEmbedding,
    DocumentEmbeddingDropout,
    DocumentFinalLayerNorm,
    DocumentFinalRMSNorm,
    DocumentLayerNorm,
    DocumentPositionEmbedding,
    DocumentRMSNorm,
    DocumentTransformerLayer,
)
from megatron_ds.models.layer_def import Activations, LayerDef
from megatron_ds.models.norms import LayerNorm, RMSNorm, norm_class
from megatron_ds.models.transformer import EmbeddingDropout, ParallelTransformerLayer, PositionEmbedding
from megatron_ds.mpu import ModelParallelUnit, VocabParallelEmbedding, vocab_parallel_cross_entropy


class LanguageModelHead(VocabParallelEmbedding):
    """Scores every token: the output head with weights of its own. `[S, B, H] -> [S, B, V/tp]`."""

    def forward(self, hidden: Tensor) -> Tensor:
        """This rank's slice of the scores: ``[S, B, H] -> [S, B, V/tp]``."""
        return self.logits(hidden)


def _tied_head(embedding: nn.Module, hidden: Activations) -> Tensor:
    assert isinstance(embedding, VocabParallelEmbedding)
    assert isinstance(hidden, Tensor)
    return embedding.logits(hidden)


def gpt_layers(
    config: ModelConfig,
    mpu: ModelParallelUnit,
    *,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    attention_backend: str = "auto",
) -> list[LayerDef]:
    """The layers of a GPT, from tokens ``[B, S]`` to logits ``[S, B, V/tp]``.

    With one of the switches on, the first layer takes tokens and document ids (``[B, S]`` each) instead; a prefix-LM
    tokens and ids that are 0 in the prefix and 1 after it. The weights and their names are the same.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
        reset_position_ids: positions count from 0 in each document.
        reset_attention_mask: tokens attend to their own document only.
        attention_backend: ``--attention-backend``, or ``inference``; see `AttentionScheme`.
    """
    assert config.vocab_size is not None, "the vocabulary size is resolved before a model is built"
    vocab_size, padded_vocab_size = config.vocab_size, config.padded_vocab_size(mpu.tp_size)

    def vocabulary(module_type: type[VocabParallelEmbedding]) -> VocabParallelEmbedding:
        return module_type(vocab_size, padded_vocab_size, config.hidden_size, mpu, init_std=config.init_method_std)

    # A layer's `module_type` stays the plain class: how a pipeline deals layers to stages does not depend on a switch.
    has_documents = reset_position_ids or reset_attention_mask or config.prefix_lm
    scheme = AttentionScheme(
        config,
        mpu,
        reset_position_ids=reset_position_ids,
        reset_attention_mask=reset_attention_mask,
        backend=attention_backend,
    )
    embedding = DocumentEmbedding if has_documents else VocabParallelEmbedding
    block = DocumentTransformerLayer if scheme.reads_documents else ParallelTransformerLayer
    if config.untie_embeddings_and_output_weights:
        head = LayerDef("lm_head", LanguageModelHead, lambda: vocabulary(LanguageModelHead))
    else:
        head = LayerDef(
            "lm_head",
            VocabParallelEmbedding,
            lambda: vocabulary(embedding),
            tied_to="word_embeddings",
            forward=_tied_head,
        )
    return [
        LayerDef("word_embeddings", VocabParallelEmbedding, lambda: vocabulary(embedding)),
        *([_embed_layernorm(config, mpu, has_documents)] if config.embed_layernorm else []),
        _positions(config, mpu, scheme, reset_position_ids) if has_documents else _plain_positions(config, mpu),
        *(
            LayerDef(f"layers.{index}", ParallelTransformerLayer, lambda: block(config, mpu, scheme), recompute=True)
            for index in range(config.num_layers)
        ),
        _final_layernorm(config, mpu, scheme.reads_documents),
        head,
    ]


def _plain_positions(config: ModelConfig, mpu: ModelParallelUnit) -> LayerDef:
    if config.has_learned_positions:
        return LayerDef("position_embeddings", PositionEmbedding, lambda: PositionEmbedding(config, mpu))
    return LayerDef("embedding_dropout", EmbeddingDropout, lambda: EmbeddingDropout(config, mpu))


def _positions(
    config: ModelConfig, mpu: ModelParallelUnit, scheme: AttentionScheme, reset_position_ids: bool
) -> LayerDef:
    pass_on = scheme.reads_documents
    if config.has_learned_positions:
        return LayerDef(
            "position_embeddings",
            PositionEmbedding,
            lambda: DocumentPositionEmbedding(config, mpu, restart=reset_position_ids, pass_on=pass_on),
        )
    return LayerDef(
        "embedding_dropout", EmbeddingDropout, lambda: DocumentEmbeddingDropout(config, mpu, pass_on=pass_on)
    )


def _embed_layernorm(config: ModelConfig, mpu: ModelParallelUnit, has_documents: bool) -> LayerDef:
    plain = norm_class(config)
    norm = {LayerNorm: DocumentLayerNorm, RMSNorm: DocumentRMSNorm}[plain] if has_documents else plain
    return LayerDef("embed_layernorm", plain, lambda: norm(config, config.hidden_size, mpu))


def _final_layernorm(config: ModelConfig, mpu: ModelParallelUnit, gets_documents: bool) -> LayerDef:
    plain = norm_class(config)
    norm = {LayerNorm: DocumentFinalLayerNorm, RMSNorm: DocumentFinalRMSNorm}[plain] if gets_documents else plain
    return LayerDef("final_layernorm", plain, lambda: norm(config, config.hidden_size, mpu))


class GptLoss:
    """The language-model loss of a micro-batch, as its share of the global batch's mean over tokens.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        assert config.vocab_size is not None
        self.vocab_size = config.vocab_size
        self.mpu = mpu

    def __call__(self, logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        """Weighted sum of the tokens' losses.

        Args:
            logits: ``[S, B, V/tp]``.
            targets: labels ``[B, S]`` int64, and each token's weight ``[B, S]`` fp32.

        Returns:
            A scalar, fp32.
        """
        labels, weights = targets
        token_losses = vocab_parallel_cross_entropy(logits, labels.transpose(0, 1), self.vocab_size, self.mpu)
        return (token_losses * weights.transpose(0, 1)).sum()
