"""Layers that know the documents inside a sample: each takes and returns a pair with the document ids in it.

The ids, int32 ``[B, S]``, enter beside the tokens, travel with the hidden states (between pipeline stages too), and
end at the last layer that reads them. Whole numbers carry no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models.layer_def import Activations
from megatron_ds.models.transformer import ParallelTransformerLayer, PositionEmbedding
from megatron_ds.mpu import VocabParallelEmbedding

WithDocuments = tuple[Tensor, Tensor]


def document_positions(document_ids: Tensor) -> Tensor:
    """The position of each token in its own document, counted from 0.

    Args:
        document_ids: ``[B, S]``, growing along S.

    Returns:
        int64 ``[B, S]``.
    """
    # Where an id would be inserted is where its document starts.
    starts = torch.searchsorted(document_ids, document_ids)
    return torch.arange(document_ids.shape[1], device=document_ids.device) - starts


class DocumentEmbedding(VocabParallelEmbedding):
    """Word embeddings that pass document ids on."""

    def forward(self, inputs: WithDocuments) -> WithDocuments:  # type: ignore[override]
        """``([B, S], ids) -> ([S, B, H], ids)``."""
        tokens, document_ids = inputs
        return super().forward(tokens), document_ids


class DocumentPositionEmbedding(PositionEmbedding):
    """Position embeddings of samples with several documents.

    Args:
        config: the architecture.
        restart: positions count from 0 in each document.
        pass_on: later layers need the document ids.
    """

    def __init__(self, config: ModelConfig, *, restart: bool, pass_on: bool) -> None:
        super().__init__(config)
        self.restart = restart
        self.pass_on = pass_on

    def forward(self, inputs: WithDocuments) -> Activations:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``, or without the ids when nobody needs them."""
        embeddings, document_ids = inputs
        hidden = super().forward(embeddings, document_positions(document_ids) if self.restart else None)
        return (hidden, document_ids) if self.pass_on else hidden


class DocumentTransformerLayer(ParallelTransformerLayer):
    """A transformer layer in which tokens attend to their own document only."""

    def forward(self, inputs: WithDocuments) -> WithDocuments:  # type: ignore[override]
        """``([S, B, H], ids) -> ([S, B, H], ids)``."""
        hidden, document_ids = inputs
        return super().forward(hidden, document_ids), document_ids


class DocumentFinalLayerNorm(nn.LayerNorm):
    """The norm after the last transformer layer, where document ids end."""

    def forward(self, inputs: WithDocuments) -> Tensor:  # type: ignore[override]
        """``([S, B, H], ids) -> [S, B, H]``."""
        hidden, _ = inputs
        return super().forward(hidden)
