"""Layers that know the documents inside a sample: each takes and returns a pair with the document ids in it.

The ids, int32 ``[B, S]``, enter beside the tokens, travel with the hidden states (between pipeline stages too), and
end at the last layer that reads them. Whole numbers carry no gradient.
"""

from __future__ import annotations

from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.layer_def import Activations
from megatron_ds.models.norms import LayerNorm, RMSNorm
from megatron_ds.models.positions import document_positions
from megatron_ds.models.transformer import EmbeddingDropout, ParallelTransformerLayer, PositionEmbedding
from megatron_ds.mpu import ModelParallelUnit, VocabParallelEmbedding

WithDocuments = tuple[Tensor, Tensor]


class DocumentEmbedding(VocabParallelEmbedding):
    """Word embeddings that pass document ids on."""

    def forward(self, inputs: WithDocuments) -> WithDocuments:  # type: ignore[override]
        """``([B, S], ids) -> ([S, B, H], ids)``."""
        tokens, document_ids = inputs
        return super().forward(tokens), document_ids


class DocumentLayerNorm(LayerNorm):
    """A norm that passes document ids on."""

    def forward(self, inputs: WithDocuments) -> WithDocuments:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``."""
        hidden, document_ids = inputs
        return super().forward(hidden), document_ids


class DocumentRMSNorm(RMSNorm):
    """A norm that passes document ids on."""

    def forward(self, inputs: WithDocuments) -> WithDocuments:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``."""
        hidden, document_ids = inputs
        return super().forward(hidden), document_ids


class DocumentPositionEmbedding(PositionEmbedding):
    """Position embeddings of samples with several documents.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        restart: positions count from 0 in each document.
        pass_on: later layers need the document ids.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, *, restart: bool, pass_on: bool) -> None:
        super().__init__(config, mpu)
        self.restart = restart
        self.pass_on = pass_on

    def forward(self, inputs: WithDocuments) -> Activations:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``, or without the ids when nobody needs them."""
        embeddings, document_ids = inputs
        hidden = super().forward(embeddings, document_positions(document_ids) if self.restart else None)
        return (hidden, document_ids) if self.pass_on else hidden


class DocumentEmbeddingDropout(EmbeddingDropout):
    """The same without learned positions.

    Args:
        config: the architecture.
        mpu: where this rank sits.
        pass_on: later layers need the document ids.
    """

    def __init__(self, config: ModelConfig, mpu: ModelParallelUnit, *, pass_on: bool) -> None:
        super().__init__(config, mpu)
        self.pass_on = pass_on

    def forward(self, inputs: WithDocuments) -> Activations:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``, or without the ids when nobody needs them."""
        embeddings, document_ids = inputs
        hidden = super().forward(embeddings)
        return (hidden, document_ids) if self.pass_on else hidden


class DocumentTransformerLayer(ParallelTransformerLayer):
    """A transformer layer whose attention reads the document ids."""

    def forward(self, inputs: WithDocuments) -> WithDocuments:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``."""
        hidden, document_ids = inputs
        return super().forward(hidden, document_ids), document_ids


class DocumentFinalLayerNorm(LayerNorm):
    """The norm after the last transformer layer, where document ids end."""

    def forward(self, inputs: WithDocuments) -> Tensor:  # type: ignore[override]
        """``([S, B, H], ids) -> [S, B, H]``."""
        hidden, _ = inputs
        return super().forward(hidden)


class DocumentFinalRMSNorm(RMSNorm):
    """The norm after the last transformer layer, where document ids end."""

    def forward(self, inputs: WithDocuments) -> Tensor:  # type: ignore[override]
        """``([S, B, H], ids) -> [S, B, H]``."""
        hidden, _ = inputs
        return super().forward(hidden)
