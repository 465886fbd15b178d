"""The loop from prompts to texts: each step asks the model for the next token of every text that is not at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.options import Completion, Decoding, Request
from megatron_ds.generation.sampling import TokenChooser


def generate(
    model: InferenceModel,
    requests: Sequence[Request],
    decoding: Decoding,
    is_done: Callable[[Sequence[int]], bool] = lambda _: False,
) -> list[Completion]:
    """Goes on with some texts at the same time. Every rank of the model must call, with the same arguments.

    Each text is what it would be alone: shorter rows are filled up at their right end, which no token sees.

    Args:
        model: the model.
        requests: the texts.
        decoding: how they go on.
        is_done: whether these new tokens of a text are enough of it.

    Returns:
        What each request came to, in their order, on every rank.
    """
    rows = [list(request.tokens) for request in requests]
    chooser = TokenChooser(requests, decoding)
    going_on = list(range(len(rows)))
    for _ in range(decoding.max_new_tokens):
        if not going_on:
            break
        prompt_lengths = [len(requests[row].tokens) for row in going_on]
        chosen = _next_tokens(model, chooser, going_on, [rows[row] for row in going_on], prompt_lengths)
        for row, token in zip(going_on, chosen, strict=True):
            rows[row].append(token)
        going_on = [
            row
            for row in going_on
            if rows[row][-1] != decoding.eod_id and not is_done(rows[row][len(requests[row].tokens) :])
        ]
    return [
        Completion(request, tuple(tokens[len(request.tokens) :]), is_ended=tokens[-1] == decoding.eod_id)
        for request, tokens in zip(requests, rows, strict=True)
    ]


def _next_tokens(
    model: InferenceModel,
    chooser: TokenChooser,
    numbers: Sequence[int],
    texts: Sequence[Sequence[int]],
    prompt_lengths: Sequence[int],
) -> list[int]:
    """The next token of each text; `numbers` are those by which the chooser knows them."""
    device, longest = model.mpu.device, max(map(len, texts))
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=device)
    last = torch.tensor([len(text) - 1 for text in texts], device=device)
    logits = model.logits(tokens, at=last, prefix=torch.tensor(prompt_lengths, device=device))
    chosen = None if logits is None else chooser.choose(logits, numbers)
    result: list[int] = model.from_last_stage(chosen, (len(texts),), torch.int64).tolist()
    return result
