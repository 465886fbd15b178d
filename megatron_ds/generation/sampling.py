"""Choosing the next token from the scores of all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.generation.options import Decoding, Request, Sampling
from megatron_ds.mpu import derive_seed


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that tokens are drawn from: temperature, then top-k, then top-p.

    Top-k (Fan et al. 2018, "Hierarchical Neural Story Generation", section 5.4) keeps all tokens that score as the k-th
    one does; top-p the nucleus (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1).

    Args:
        logits: ``[B, V]``.
        sampling: how.

    Returns:
        ``[B, V]`` fp32: zero for tokens that are left out; rows add up to one.
    """
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, places = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        # A token is in the nucleus while those before it are not enough; so the first one always is.
        is_beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        scores = scores.masked_fill(is_beyond.scatter(-1, places, is_beyond), -torch.inf)
    return scores.softmax(-1)


class TokenChooser:
    """Chooses the next token of each of several texts.

    Args:
        requests: the texts, in the order of the rows that `choose` knows them by.
        decoding: how.
    """

    def __init__(self, requests: Sequence[Request], decoding: Decoding) -> None:
        self._decoding = decoding
        # On the CPU whatever the model runs on: generators of other devices draw other numbers.
        self._generators = [_generator(request, decoding.sampling) for request in requests]

    def choose(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """The next token of each row, int64 ``[B]`` on the device of the scores.

        Args:
            logits: scores of all tokens, ``[B, V]``.
            rows: which texts these are.

        Raises:
            CheckpointError: scores are not finite.
        """
        logits = logits[:, : self._decoding.num_ids]
        if not bool(logits.isfinite().all()):
            raise CheckpointError(
                Problem(
                    f"the model's scores are not finite in {str(logits.dtype).removeprefix('torch.')}",
                    advice="give --dtype fp32 or bf16; if that does not help, the weights are broken",
                )
            )
        if self._decoding.sampling is None:
            return logits.argmax(-1)
        rows_of_chances = probabilities(logits, self._decoding.sampling).cpu()
        drawn = [
            torch.multinomial(chances, 1, generator=self._generators[row])
            for row, chances in zip(rows, rows_of_chances, strict=True)
        ]
        return torch.cat(drawn).to(logits.device)


def _generator(request: Request, sampling: Sampling | None) -> torch.Generator:
    seed = 0 if sampling is None else derive_seed("generate", sampling.seed, request.prompt, request.sample)
    return torch.Generator().manual_seed(seed)
