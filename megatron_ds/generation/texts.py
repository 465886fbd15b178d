"""Prompts: from a file, to tokens that fit the model, and what follows them back to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.generation.options import Completion
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.utils.text import counted

_DEFAULT_NEW_TOKENS = 64


def read_prompts(file: Path) -> list[str]:
    """The prompts of a file.

    Args:
        file: with the suffix ``.jsonl``, JSON lines: each a string, or an object with the prompt under ``prompt``. With
            any other, text: each line is a prompt. Empty lines are left out in both.

    Raises:
        ConfigError: the file can't be read, has a line that is no prompt, or holds none at all.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem(f"the prompts in {file} can't be read: {error}", advice="check the path")) from error
    is_json = file.suffix == ".jsonl"
    numbered = [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(Problem(f"{file} holds no prompt", advice="write one on each line"))
    return [_json_prompt(file, number, line) if is_json else line for number, line in numbered]


def _json_prompt(file: Path, number: int, line: str) -> str:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(Problem(f"{file}, line {number} is no JSON: {error}")) from error
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise ConfigError(
            Problem(f"{file}, line {number} has no prompt", advice='write "text", or an object {"prompt": "text"}')
        )
    return prompt


def encode_prompts(
    texts: Sequence[str], tokenizer: Tokenizer, eod_id: int | None, *, allow_special: bool
) -> list[tuple[int, ...]]:
    """The tokens of each prompt. One without any begins at the end of a document, as a text does in training.

    Args:
        texts: the prompts.
        tokenizer: the model's.
        eod_id: what ends a document, where that is known.
        allow_special: the string of a special token in a prompt becomes its one id.

    Raises:
        MegatronDsError: a prompt is empty and no token ends a document, or it is no text that the tokenizer takes.
    """
    encoded, empty = [], []
    for number, text in enumerate(texts, 1):
        if not _is_utf8(text):
            raise ConfigError(Problem(f"prompt {number} is no text in UTF-8"))
        tokens = tuple(tokenizer.encode(text, allow_special=allow_special))
        if not tokens and eod_id is None:
            empty.append(str(number))
        encoded.append(tokens or (eod_id or 0,))
    if empty:
        raise ConfigError(
            Problem(
                f"prompt {', '.join(empty)} is empty, and no token is known that ends a document and could begin one",
                advice="give --eod-id, or a prompt with a text",
            )
        )
    return encoded


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def default_new_tokens(prompts: Sequence[Sequence[int]], model: ModelConfig) -> int:
    """How many tokens follow where nobody says it: 64, or as many as there are positions left.

    Args:
        prompts: tokens of each.
        model: the architecture.
    """
    if not model.has_learned_positions:
        return _DEFAULT_NEW_TOKENS
    return max(1, min(_DEFAULT_NEW_TOKENS, model.num_positions - max(map(len, prompts))))


def length_problems(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, model: ModelConfig, origin: str
) -> list[Problem]:
    """One problem where texts could get longer than the positions that a model has learned.

    Args:
        prompts: tokens of each.
        max_new_tokens: that may follow.
        model: the architecture.
        origin: where the model is from.
    """
    longest = max(range(len(prompts)), key=lambda place: len(prompts[place]))
    length = len(prompts[longest])
    if not model.has_learned_positions or length + max_new_tokens <= model.num_positions:
        return []
    room = model.num_positions - length
    return [
        Problem(
            f"prompt {longest + 1} has {counted(length, 'token')}, and with {max_new_tokens} new ones more than the "
            f"{model.num_positions} positions that the model has learned",
            (
                Source("max_new_tokens", str(max_new_tokens), "--max-new-tokens"),
                Source("max_position_embeddings", str(model.num_positions), origin),
            ),
            f"give --max-new-tokens {room} or less" if room > 0 else "shorten the prompt",
        )
    ]


def length_note(prompts: Sequence[Sequence[int]], max_new_tokens: int, model: ModelConfig) -> str:
    """What to know where texts may get longer than those of training; empty where they can't."""
    longest = max(map(len, prompts)) + max_new_tokens
    if model.has_learned_positions or longest <= model.seq_length:
        return ""
    return (
        f"texts may get {longest} tokens long, and the model was trained with {model.seq_length}: what comes after "
        "those may be worse"
    )


def new_text(completion: Completion, tokenizer: Tokenizer) -> str:
    """The text that follows the prompt, without the token that ended it.

    Args:
        completion: what was generated.
        tokenizer: the model's.
    """
    tokens = completion.tokens[:-1] if completion.is_ended else completion.tokens
    # Some tokenizers leave out the space of a first word, so that what is new is found in the whole.
    prompt = tokenizer.decode(completion.request.tokens)
    whole = tokenizer.decode([*completion.request.tokens, *tokens])
    return whole[len(prompt) :] if whole.startswith(prompt) else tokenizer.decode(tokens)
