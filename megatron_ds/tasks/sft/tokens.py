"""Tokens of one example, and which of them the model is to learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LearnedTokens:
    """One example of n tokens.

    Attributes:
        tokens: int32 [n].
        is_learned: whether a token counts in the loss, where it is a label, bool [n].
    """

    tokens: NDArray[np.int32]
    is_learned: NDArray[np.bool_]

    def first(self, most: int) -> LearnedTokens:
        """The first `most` tokens, or all."""
        return LearnedTokens(self.tokens[:most], self.is_learned[:most])

    def up_to_last_learned(self) -> LearnedTokens:
        """Without the tokens behind the last one that is learned: as inputs, nothing is learned from them."""
        learned = np.flatnonzero(self.is_learned)
        return self.first(int(learned[-1]) + 1 if len(learned) else 0)
