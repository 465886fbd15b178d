"""A model that says what a test wants it to say, in place of an `InferenceModel`."""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.mpu import ModelParallelUnit
from tests.generation.models import SIZES


class StubModel:
    """Knows the next token of every text, but for those places whose number is in `wrong`; sure of what it says.

    Args:
        vocab_size: ids.
        wrong: numbers of tokens, from the start of the window, that it gets wrong.
        sureness: by how much the score of its choice is above the others; 0: all are alike.
    """

    dtype = torch.float32

    def __init__(self, vocab_size: int, wrong: tuple[int, ...] = (), sureness: float = 20.0) -> None:
        self.config = ModelConfig(**SIZES | {"vocab_size": vocab_size})
        self.mpu = ModelParallelUnit.offline()
        self._wrong = wrong
        self._sureness = sureness
        self._text: Tensor | None = None

    def see(self, tokens: tuple[int, ...]) -> None:
        """The text whose tokens it knows."""
        self._text = torch.tensor(tokens)

    def hidden(self, tokens: Tensor, *, prefix: Tensor | None = None) -> Tensor:
        assert self._text is not None
        batch, length = tokens.shape
        scores = torch.zeros(length, batch, self.config.vocab_size or 0)
        for place in range(length):
            choice = int(self._text[place + 1])
            choice = choice + 1 if place + 1 in self._wrong else choice
            scores[place, :, choice] = self._sureness
        return scores

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def from_last_stage(self, values: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return values
