"""Our model as lm-evaluation-harness asks for it. The one module that needs the extra ``eval``; rank 0 imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import TemplateLM

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import ConfigError, Problem
from megatron_ds.generation.options import Decoding, Request, Sampling
from megatron_ds.generation.scoring import WindowScore
from megatron_ds.generation.windows import windows_of
from megatron_ds.tasks.zeroshot.job import HarnessTask
from megatron_ds.tasks.zeroshot.shared_model import SharedModel, Texts

# New tokens of a text where a task does not say it: what the harness's own models take.
_DEFAULT_NEW_TOKENS = 256
_LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A checkpoint's model, for any task of the harness.

    Text around a question is what `TemplateLM` makes of it. No token is put before a text that has a context.

    Args:
        model: all ranks of it.
        config: its architecture.
        task: the tokenizer, the token before empty contexts, and the window.
    """

    def __init__(self, model: SharedModel, config: ModelConfig, task: HarnessTask) -> None:
        super().__init__()
        self._model = model
        self._config = config
        self._task = task

    @property
    def max_length(self) -> int:
        """Tokens that the model sees at once."""
        return self._task.length

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document, and stands before a text without a context.

        Raises:
            ConfigError: none is known.
        """
        eod_id = self._task.eod_id
        if eod_id is None:
            message = (
                "a task has texts without a context, and no token is known that ends a document and could begin one"
            )
            raise ConfigError(Problem(message, advice="give --eod-id"))
        return eod_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:  # noqa: ARG002
        """The tokens of a text. The strings of special tokens become their ids, as in the harness's own models."""
        return self._task.tokenizer.encode(string, allow_special=True)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        # A context of spaces alone has no tokens: they are the first target's.
        contexts = [context or [self.prefix_token_id] for _, context, _ in requests]
        texts = [(context + targets, len(context)) for context, (_, _, targets) in zip(contexts, requests, strict=True)]
        return [(score.log_probability, score.all_right) for score in self._scores(texts)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002
        """The log-probability of each text, all of its tokens, the first one after the end of a document."""
        texts = [([self.prefix_token_id, *self.tok_encode(request.args[0])], 1) for request in requests]
        return [score.log_probability for score in self._scores(texts)]

    def _scores(self, texts: Sequence[tuple[list[int], int]]) -> list[WindowScore]:
        """The score of each text from its first target on, however long it is."""
        windows = [windows_of(tokens, first, self.max_length) for tokens, first in texts]
        scores = iter(self._model.score([window for text in windows for window in text]))
        return [sum((next(scores) for _ in text), WindowScore()) for text in windows]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """What follows each context, up to the first of the strings that the task names."""
        results = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        # Texts of one kind go on together.
        for numbers in groups.values():
            options = dict(requests[numbers[0]].args[1])
            stops = _stops(options.pop("until", None))
            decoding = self._decoding(options)
            room = self.max_length - decoding.max_new_tokens
            contexts = [tuple(self.tok_encode(requests[number].args[0])[-room:]) for number in numbers]
            texts = tuple(
                Request(context or (self.prefix_token_id,), number)
                for number, context in zip(numbers, contexts, strict=True)
            )
            for number, text in zip(numbers, self._model.generate(Texts(texts, decoding, stops)), strict=True):
                results[number] = _before(text, stops)
        return results

    def _decoding(self, options: dict[str, Any]) -> Decoding:
        lengths = [options.pop(key) for key in _LENGTH_KEYS if key in options]
        max_new_tokens = int(lengths[0]) if lengths else _DEFAULT_NEW_TOKENS
        if not 1 <= max_new_tokens < self.max_length:
            message = f"a task asks for {max_new_tokens} new tokens, and the model sees {self.max_length} at once"
            raise ConfigError(Problem(message, advice="leave the task out, or use a model with a longer window"))
        is_drawn = options.pop("do_sample", None)
        temperature = float(options.pop("temperature", 0.0) or 0.0)
        # 0 is off, as for transformers.
        top_k, top_p = int(options.pop("top_k", None) or 0), float(options.pop("top_p", None) or 1.0)
        if unknown := [f"{key}: {value}" for key, value in options.items()]:
            message = f"a task asks for {', '.join(unknown)} when texts are generated, which this model can't do"
            raise ConfigError(Problem(message, advice="leave the task out"))
        if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
            message = f"a task asks for temperature {temperature:g}, top_k {top_k} and top_p {top_p:g}"
            raise ConfigError(Problem(message, advice="temperature and top_k are 0 or more, and top_p is from 0 to 1"))
        sampling = None
        if is_drawn or (is_drawn is None and temperature > 0):
            sampling = Sampling(temperature or 1.0, top_k or None, top_p)
        assert self._config.vocab_size is not None
        num_ids = min(self._config.vocab_size, self._task.tokenizer.vocab_size)
        return Decoding(max_new_tokens, self._task.eod_id, num_ids, sampling)


def _stops(until: Any) -> tuple[str, ...]:
    words = [until] if isinstance(until, str) else until or []
    return tuple(str(word) for word in words if word)


def _before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the strings."""
    for stop in stops:
        text = text.split(stop, maxsplit=1)[0]
    return text
