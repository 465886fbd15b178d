"""BERT as one list of layers, and the losses of its heads."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.attention import AttentionScheme
from megatron_ds.models.bert_layers import (
    BertEmbedding,
    BinaryHead,
    ClassificationHead,
    MaskedLmHead,
    Pooler,
    TokenTypeEmbedding,
    decode,
)
from megatron_ds.models.documents import (
    DocumentEmbeddingDropout,
    DocumentFinalLayerNorm,
    DocumentFinalRMSNorm,
    DocumentPositionEmbedding,
    DocumentTransformerLayer,
)
from megatron_ds.models.gpt import GptLoss
from megatron_ds.models.layer_def import Activations, LayerDef
from megatron_ds.models.norms import LayerNorm, norm_class
from megatron_ds.models.transformer import EmbeddingDropout, ParallelTransformerLayer, PositionEmbedding
from megatron_ds.mpu import ModelParallelUnit, VocabParallelEmbedding


def bert_layers(config: ModelConfig, mpu: ModelParallelUnit, *, attention_backend: str = "auto") -> list[LayerDef]:
    """The layers of a BERT (Devlin et al. 2019): from tokens, token types and padding mask to what its head gives.

    The first layer takes ``[B, S]`` of each; the mask is 1 where there is a token and 0 in padding. What the last one
    returns depends on ``output_head``:

    - ``lm``: scores of the tokens ``[S, B, V/tp]``, and beside them, with the binary head, those of the sentence order
      ``[B, 2]``;
    - ``classification``: scores of the classes, ``[B, C]``;
    - ``multiple_choice``: a score ``[B, 1]`` of each sequence, which is a sample with one of its choices;
    - ``none``: hidden states ``[S, B, H]``, and beside them, with the binary head, the pooled first token ``[B, H]``.

    With ``--residual-connection post_ln`` this is the published model: the norm of its embeddings is the first
    transformer layer's, and the final norm ends the last layer. Dropout of the embeddings comes before that norm.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
        attention_backend: ``--attention-backend``.
    """
    assert config.vocab_size is not None, "the vocabulary size is resolved before a model is built"
    vocab_size, padded_vocab_size = config.vocab_size, config.padded_vocab_size(mpu.tp_size)
    scheme = AttentionScheme(config, mpu, backend=attention_backend)

    def vocabulary() -> BertEmbedding:
        return BertEmbedding(vocab_size, padded_vocab_size, config.hidden_size, mpu, init_std=config.init_method_std)

    masked_lm = (
        LayerDef("lm_head", MaskedLmHead, lambda: MaskedLmHead(config, mpu)),
        LayerDef("decoder", VocabParallelEmbedding, vocabulary, tied_to="word_embeddings", forward=decode),
    )
    return [
        LayerDef("word_embeddings", VocabParallelEmbedding, vocabulary),
        LayerDef("tokentype_embeddings", TokenTypeEmbedding, lambda: TokenTypeEmbedding(config, mpu)),
        _positions(config, mpu),
        *(
            LayerDef(
                f"layers.{index}",
                ParallelTransformerLayer,
                lambda: DocumentTransformerLayer(config, mpu, scheme),
                recompute=True,
            )
            for index in range(config.num_layers)
        ),
        _final_layernorm(config, mpu),
        *_head_of_samples(config, mpu),
        *(masked_lm if config.output_head == "lm" else ()),
    ]


def _positions(config: ModelConfig, mpu: ModelParallelUnit) -> LayerDef:
    if config.has_learned_positions:
        return LayerDef(
            "position_embeddings",
            PositionEmbedding,
            lambda: DocumentPositionEmbedding(config, mpu, restart=False, pass_on=True),
        )
    return LayerDef("embedding_dropout", EmbeddingDropout, lambda: DocumentEmbeddingDropout(config, mpu, pass_on=True))


def _final_layernorm(config: ModelConfig, mpu: ModelParallelUnit) -> LayerDef:
    plain = norm_class(config)
    norm = DocumentFinalLayerNorm if plain is LayerNorm else DocumentFinalRMSNorm
    return LayerDef("final_layernorm", plain, lambda: norm(config, config.hidden_size, mpu))


def _head_of_samples(config: ModelConfig, mpu: ModelParallelUnit) -> Iterator[LayerDef]:
    """The layers that make something of the first token; none without the binary head or a task's."""
    of_task = config.output_head in ("classification", "multiple_choice")
    if of_task or config.bert_binary_head:
        yield LayerDef("pooler", Pooler, lambda: Pooler(config, mpu, beside=not of_task))
    if of_task:
        yield LayerDef("classification_head", ClassificationHead, lambda: ClassificationHead(config, mpu))
    elif config.output_head == "lm" and config.bert_binary_head:
        yield LayerDef("binary_head", BinaryHead, lambda: BinaryHead(config, mpu))


class MaskedLmLoss:
    """The loss of the masked tokens, as a micro-batch's share of the global batch's mean over them.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit) -> None:
        self._of_logits = GptLoss(config, mpu)

    def __call__(self, outputs: Activations, targets: tuple[Tensor, Tensor]) -> Tensor:
        """Weighted sum of the tokens' losses, a scalar in fp32.

        Args:
            outputs: of the last layer: ``[S, B, V/tp]``, or a tuple that begins with it.
            targets: labels ``[B, S]`` int64, and each one's weight ``[B, S]`` fp32.
        """
        return self._of_logits(outputs[0] if isinstance(outputs, tuple) else outputs, targets)


def sentence_order_loss(outputs: Activations, targets: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of the sentence order, as a micro-batch's share of the global batch's mean over samples.

    Args:
        outputs: of the last layer: a tuple of the tokens' scores and of those of the order, ``[B, 2]``.
        targets: labels ``[B]`` int64, and each one's weight ``[B]`` fp32.

    Returns:
        A scalar, fp32.
    """
    assert isinstance(outputs, tuple)
    labels, weights = targets
    return (F.cross_entropy(outputs[1].float(), labels, reduction="none") * weights).sum()


def classification_loss(outputs: Activations, targets: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of the classes or choices, as a micro-batch's share of the global batch's mean over samples.

    Args:
        outputs: scores of the classes ``[B, C]``, or of the choices one after the other, ``[B x C, 1]``.
        targets: labels ``[B]`` int64, and each one's weight ``[B]`` fp32.

    Returns:
        A scalar, fp32.
    """
    assert isinstance(outputs, Tensor)
    labels, weights = targets
    scores = outputs.float().view(len(labels), -1)
    return (F.cross_entropy(scores, labels, reduction="none") * weights).sum()


def regression_loss(outputs: Activations, targets: tuple[Tensor, Tensor]) -> Tensor:
    """The squared error of a number, as a micro-batch's share of the global batch's mean over samples.

    Args:
        outputs: the numbers, ``[B, 1]``.
        targets: what they should be, ``[B]`` fp32, and each one's weight ``[B]`` fp32.

    Returns:
        A scalar, fp32.
    """
    assert isinstance(outputs, Tensor)
    wanted, weights = targets
    return ((outputs.float().view(-1) - wanted) ** 2 * weights).sum()
