"""What is generated, from which prompts, and how tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sampling:
    """Tokens are drawn, instead of always the likeliest one being taken.

    A text follows from the seed, its prompt, and the numbers of prompt and sample: neither the layout nor the other
    texts of a batch change it.

    Attributes:
        temperature: scores are divided by it; below 1 likely tokens gain.
        top_k: only so many of the likeliest tokens are drawn; None for all.
        top_p: only the fewest likeliest tokens whose probabilities add up to this, after `top_k`; None for all.
        seed: of the numbers drawn.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1234


@dataclass(frozen=True)
class Decoding:
    """How texts go on.

    Attributes:
        max_new_tokens: tokens of one text at most, the one that ends it included.
        eod_id: the token that ends a text; None where there is none.
        num_ids: only smaller ids are chosen: not the vocabulary's padding, nor what the tokenizer can't spell.
        sampling: None takes the token with the highest score, the first of several.
    """

    max_new_tokens: int
    eod_id: int | None
    num_ids: int
    sampling: Sampling | None = None


@dataclass(frozen=True)
class Request:
    """A text to go on with.

    Attributes:
        tokens: of the prompt; at least one.
        prompt: number of the prompt, from 0.
        sample: number among the texts of that prompt, from 0.
    """

    tokens: tuple[int, ...]
    prompt: int = 0
    sample: int = 0


@dataclass(frozen=True)
class Completion:
    """What a request came to.

    Attributes:
        request: what was asked for.
        tokens: the new tokens; the one that ended the text is among them.
        is_ended: the last token is the end of the document; otherwise there were `max_new_tokens`.
    """

    request: Request
    tokens: tuple[int, ...]
    is_ended: bool


@dataclass(frozen=True)
class GenerationJob:
    """Everything that a process needs to know to do its part.

    Attributes:
        checkpoint: its own folder.
        precision: of weights and computing: ``fp32``, ``bf16`` or ``fp16``.
        tp_size: tensor-parallel size.
        pp_size: pipeline stages.
        requests: the texts, in the order of the output.
        decoding: how they go on.
        batch_size: texts that one replica of the model goes on with at the same time.
    """

    checkpoint: Path
    precision: str
    tp_size: int
    pp_size: int
    requests: tuple[Request, ...]
    decoding: Decoding
    batch_size: int
