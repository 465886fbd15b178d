"""A model on many ranks that one of them speaks for: what runs on rank 0 alone need not know of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch.distributed as dist

from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.options import Completion, Decoding, Request
from megatron_ds.generation.run import completions
from megatron_ds.generation.scoring import WindowScore, score_windows
from megatron_ds.generation.texts import new_text
from megatron_ds.generation.windows import Window
from megatron_ds.tasks.zeroshot.job import Progress
from megatron_ds.tokenizers import Tokenizer


@dataclass(frozen=True)
class Texts:
    """Texts that are to go on.

    Attributes:
        requests: the texts.
        decoding: how they go on.
        stops: strings; a text is long enough when its new part has one of them.
    """

    requests: tuple[Request, ...]
    decoding: Decoding
    stops: tuple[str, ...]


# What all ranks do together; None ends it.
_Call: TypeAlias = tuple[Window, ...] | Texts | None


class SharedModel:
    """The replicas of a model. Rank 0 calls `score` and `generate`, and `end` at last; the others call `serve`.

    Args:
        model: this rank's part of a replica.
        tokenizer: the model's.
        batch_size: texts that a replica runs together.
        progress: shows how far a call is.
    """

    def __init__(self, model: InferenceModel, tokenizer: Tokenizer, batch_size: int, progress: Progress) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._progress = progress

    @property
    def speaks(self) -> bool:
        """Whether this is the rank that calls."""
        return self._model.mpu.global_rank == 0

    def score(self, windows: Sequence[Window]) -> list[WindowScore]:
        """The scores of windows; see `score_windows`."""
        call = tuple(windows)
        self._tell(call)
        return self._score(call)

    def generate(self, texts: Texts) -> list[str]:
        """What the texts go on with, in their order."""
        self._tell(texts)
        return [new_text(completion, self._tokenizer) for completion in self._generate(texts)]

    def end(self) -> None:
        """Lets the other ranks go."""
        self._tell(None)

    def serve(self) -> None:
        """Does what rank 0 asks for, until it ends."""
        while (call := self._hear()) is not None:
            if isinstance(call, Texts):
                self._generate(call)
            else:
                self._score(call)

    def _score(self, windows: Sequence[Window]) -> list[WindowScore]:
        if not windows:
            return []
        with self._progress("texts scored", len(windows)) as advance:
            return score_windows(self._model, windows, self._batch_size, advance)

    def _generate(self, texts: Texts) -> list[Completion]:
        def is_done(tokens: Sequence[int]) -> bool:
            text = self._tokenizer.decode(tokens)
            return any(stop in text for stop in texts.stops)

        found = []
        with self._progress("texts generated", len(texts.requests)) as advance:
            for completion in completions(self._model, texts.requests, texts.decoding, self._batch_size, is_done):
                found.append(completion)
                advance(1)
        return found

    def _tell(self, call: _Call) -> None:
        if dist.is_initialized():
            dist.broadcast_object_list([call], src=0)

    def _hear(self) -> _Call:
        heard: list[_Call] = [None]
        dist.broadcast_object_list(heard, src=0)
        return heard[0]
