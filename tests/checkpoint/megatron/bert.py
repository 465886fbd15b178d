"""A textbook BERT over the same weights as the textbook GPT, with the heads that Megatron-LM trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.checkpoint.megatron.reference import FUNCTIONS, HIDDEN, VOCAB, Gpt

CLASSES = 3


@dataclass(frozen=True)
class Bert(Gpt):
    """A BERT.

    Attributes:
        head: ``lm`` (masked tokens), ``both`` (and the sentence order), ``classification``, ``multichoice``, or
            ``none``.
    """

    head: str = "both"
    activation: str = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        generator = torch.Generator().manual_seed(13)

        def linear(name: str, outputs: int) -> None:
            self.outer[f"{name}.weight"] = 0.3 * torch.randn(outputs, HIDDEN, generator=generator)
            self.outer[f"{name}.bias"] = 0.3 * torch.randn(outputs, generator=generator)

        if self.head != "lm":
            self.outer["types"] = 0.3 * torch.randn(2, HIDDEN, generator=generator)
            linear("pooler.dense", HIDDEN)
        if self.shares_embeddings:
            linear("lm_head.dense", HIDDEN)
            self.outer["lm_head.layernorm.weight"] = 1 + 0.3 * torch.randn(HIDDEN, generator=generator)
            self.outer["lm_head.layernorm.bias"] = 0.3 * torch.randn(HIDDEN, generator=generator)
            self.outer["lm_head.bias"] = torch.randn(VOCAB, generator=generator)
        if self.head == "both":
            linear("binary_head", 2)
        elif not self.shares_embeddings and self.head != "none":
            linear(f"{self.head}_head", CLASSES if self.head == "classification" else 1)

    @property
    def shares_embeddings(self) -> bool:
        return self.head in ("lm", "both")

    def scores(self, tokens: Tensor, types: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """What the heads say, as our `bert_layers` return it: of tokens ``[S, B, V]``, of samples ``[B, C]``."""
        x = self.outer["embeddings"][tokens]
        if "types" in self.outer:
            x = x + self.outer["types"][types]
        hidden = self.hidden(x, mask[:, None, None] * mask[:, None, :, None] == 0)
        pooled = torch.tanh(self._linear(hidden[:, 0], "pooler.dense")) if "types" in self.outer else hidden[:, 0]
        if self.head == "none":
            return hidden.transpose(0, 1), pooled
        if not self.shares_embeddings:
            return (self._linear(pooled, f"{self.head}_head"),)
        transformed = FUNCTIONS[self.activation](self._linear(hidden, "lm_head.dense"))
        normed = self._norm(transformed, self.outer, "lm_head.layernorm")
        logits = F.linear(normed, self.outer["embeddings"], self.outer["lm_head.bias"]).transpose(0, 1)
        return (logits, self._linear(pooled, "binary_head")) if self.head == "both" else (logits,)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.outer[f"{name}.weight"], self.outer[f"{name}.bias"])
