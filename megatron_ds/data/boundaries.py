"""Where documents end inside a sample, and what that changes (Megatron's ``get_ltor_masks_and_position_ids``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig


@dataclass(frozen=True)
class DocumentBoundaries:
    """What the end-of-document token (EOD) changes in a batch.

    Attributes:
        eod_id: its id. An EOD belongs to the document that it ends.
        number_documents: the model is told which document each token belongs to.
        mask_loss: what is predicted at an EOD does not count in the loss.
    """

    eod_id: int
    number_documents: bool
    mask_loss: bool

    @classmethod
    def of(cls, data: DataConfig) -> DocumentBoundaries | None:
        """The boundaries that the options ask for, or None when documents run into each other."""
        if not data.document_options:
            return None
        assert data.eod_id is not None, "checked before the start"
        return cls(data.eod_id, data.reset_position_ids or data.reset_attention_mask, data.eod_mask_loss)


def document_ids(ends: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Numbers the documents of each sample from 0 on.

    Args:
        ends: whether a token is an EOD, [B, S].

    Returns:
        int32 [B, S]: the number of EODs before each token.
    """
    ids = np.cumsum(ends, axis=1, dtype=np.int32)
    ids -= ends
    return ids
