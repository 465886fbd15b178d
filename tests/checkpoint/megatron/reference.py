"""A textbook GPT over weights head by head: what every format's files must compute, whatever their order of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

HIDDEN, HEADS, WIDTH, FFN, LAYERS, VOCAB, POSITIONS = 32, 4, 8, 48, 4, 61, 16
# One of each activation's spellings is enough for the reference: the formats name them differently.
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": F.gelu,
    "squared_relu": lambda x: F.relu(x) ** 2,
    "swiglu": F.silu,
    "geglu": F.gelu,
}
Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Gpt:
    """A model's shape and its weights, none of them zero or one.

    Attributes:
        positions: ``learned``, ``rope``, ``alibi`` or ``none``.
        groups: heads of keys and values.
        activation: a name of `FUNCTIONS`.
        rms: RMSNorm in place of LayerNorm.
        biases: linear layers have biases.
        post_ln: the residual stream leaves from behind the norms.
        tied: the head is the embeddings.
        embed_norm: a norm after the embeddings.
        qk_norm: norms of each head's queries and keys.
        window: tokens that a token attends to.
        outer: parts around the blocks.
        layers: parts of each block: queries ``[N, D, H]``, keys and values ``[G, D, H]``, matrices ``[out, in]``.
    """

    positions: str = "learned"
    groups: int = HEADS
    activation: str = "gelu_tanh"
    rms: bool = False
    biases: bool = True
    post_ln: bool = False
    tied: bool = True
    embed_norm: bool = False
    qk_norm: bool = False
    window: int = POSITIONS
    outer: Parts = field(init=False)
    layers: list[Parts] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(11)

        def norm(name: str, size: int = HIDDEN) -> Parts:
            parts = {f"{name}.weight": 1 + 0.3 * torch.randn(size, generator=generator)}
            return parts if self.rms else {**parts, f"{name}.bias": 0.3 * torch.randn(size, generator=generator)}

        def linear(name: str, *shape: int) -> Parts:
            parts = {f"{name}.weight": 0.2 * torch.randn(*shape, generator=generator)}
            if self.biases:
                parts[f"{name}.bias"] = 0.2 * torch.randn(*shape[:-1], generator=generator)
            return parts

        def block() -> Parts:
            gated = self.activation.endswith("glu")
            return {
                **norm("norm1"),
                **linear("q", HEADS, WIDTH, HIDDEN),
                **linear("k", self.groups, WIDTH, HIDDEN),
                **linear("v", self.groups, WIDTH, HIDDEN),
                **({**norm("q_norm", WIDTH), **norm("k_norm", WIDTH)} if self.qk_norm else {}),
                **linear("dense", HIDDEN, HEADS * WIDTH),
                **norm("norm2"),
                **(linear("gate", FFN, HIDDEN) if gated else {}),
                **linear("up", FFN, HIDDEN),
                **linear("down", HIDDEN, FFN),
            }

        outer = {"embeddings": 0.2 * torch.randn(VOCAB, HIDDEN, generator=generator), **norm("final")}
        if self.positions == "learned":
            outer["positions"] = 0.2 * torch.randn(POSITIONS, HIDDEN, generator=generator)
        if not self.tied:
            outer["head"] = 0.2 * torch.randn(VOCAB, HIDDEN, generator=generator)
        if self.embed_norm:
            outer |= norm("embed_norm")
        object.__setattr__(self, "outer", outer)
        object.__setattr__(self, "layers", [block() for _ in range(LAYERS)])

    @property
    def shares_embeddings(self) -> bool:
        """Whether the last layer is the embeddings."""
        return self.tied

    def logits(self, tokens: Tensor) -> Tensor:
        """``[B, S] -> [B, S, V]``."""
        places = torch.arange(tokens.shape[1])
        distance = places[:, None] - places
        hidden = self.hidden(self.outer["embeddings"][tokens], (distance < 0) | (distance >= self.window))
        return hidden @ self.outer["embeddings" if self.tied else "head"].t()

    def hidden(self, x: Tensor, unseen: Tensor) -> Tensor:
        """What comes out of the last norm, ``[B, S, H] -> [B, S, H]``.

        Args:
            x: embeddings of the words, and of what is added to them but positions.
            unseen: which tokens a token does not attend to, ``[..., S, S]``.
        """
        if self.embed_norm:
            x = self._norm(x, self.outer, "embed_norm")
        if self.positions == "learned":
            x = x + self.outer["positions"][: x.shape[1]]
        for parts in self.layers:
            normed = self._norm(x, parts, "norm1")
            x = (normed if self.post_ln else x) + self._attention(normed, parts, unseen)
            normed = self._norm(x, parts, "norm2")
            x = (normed if self.post_ln else x) + self._mlp(normed, parts)
        return self._norm(x, self.outer, "final")

    def _norm(self, x: Tensor, parts: Parts, name: str) -> Tensor:
        if self.rms:
            return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * parts[f"{name}.weight"]
        return F.layer_norm(x, x.shape[-1:], parts[f"{name}.weight"], parts[f"{name}.bias"])

    def _mlp(self, x: Tensor, parts: Parts) -> Tensor:
        function = FUNCTIONS[self.activation]
        up = F.linear(x, parts["up.weight"], parts.get("up.bias"))
        gated = "gate.weight" in parts
        inner = function(F.linear(x, parts["gate.weight"], parts.get("gate.bias"))) * up if gated else function(up)
        return F.linear(inner, parts["down.weight"], parts.get("down.bias"))

    def _attention(self, x: Tensor, parts: Parts, unseen: Tensor) -> Tensor:
        query, key, value = (self._heads(x, parts, name) for name in "qkv")
        if self.qk_norm:
            query, key = self._norm(query, parts, "q_norm"), self._norm(key, parts, "k_norm")
        if self.positions == "rope":
            query, key = _rotated(query), _rotated(key)
        key, value = (heads.repeat_interleave(HEADS // self.groups, 1) for heads in (key, value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH)
        if self.positions == "alibi":
            slopes = torch.tensor([2 ** (-8 * i / HEADS) for i in range(1, HEADS + 1)])
            scores = scores + slopes[:, None, None] * torch.arange(x.shape[1])
        # Megatron's value for masked scores.
        scores = scores.masked_fill(unseen, -10000.0)
        context = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return F.linear(context, parts["dense.weight"], parts.get("dense.bias"))

    def _heads(self, x: Tensor, parts: Parts, name: str) -> Tensor:
        heads = torch.einsum("bsh,ndh->bnsd", x, parts[f"{name}.weight"])
        return heads + parts[f"{name}.bias"][:, None] if self.biases else heads


def _rotated(heads: Tensor) -> Tensor:
    """NeoX's rotation: number i of the first half goes with number i of the second."""
    half = heads.shape[-1] // 2
    angles = torch.arange(heads.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)
