"""LAMBADA (Paperno et al. 2016): the last word of a passage, which follows from all of it and not from its sentence.

What counts is decided by Megatron's rules: ``strict`` asks for the last word, all of its pieces; otherwise for the last
token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_ds.errors import DataError, Problem
from megatron_ds.generation.windows import windows_of
from megatron_ds.tasks.zeroshot.job import TextTask
from megatron_ds.tasks.zeroshot.results import TaskResult, perplexity
from megatron_ds.tasks.zeroshot.text_file import read_text
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.utils.text import counted, has_bytes

if TYPE_CHECKING:
    from megatron_ds.generation.scoring import WindowScore

NAME = "LAMBADA"


def lambada_task(file: Path, tokenizer: Tokenizer, length: int, *, strict: bool) -> TextTask:
    """The passages of a file.

    Args:
        file: JSON lines, each an object with the passage under ``text``.
        tokenizer: the model's.
        length: tokens that the model sees at once; of a longer context the right end is kept.
        strict: asks for the whole last word; otherwise for the last token.

    Raises:
        DataError: the file can't be read, holds no passage, or one without a context.
    """
    passages = [
        _passage(file, number, line) for number, line in enumerate(read_text(file).split("\n"), 1) if line.strip()
    ]
    if not passages:
        raise DataError(Problem(f"{file} holds no passage", advice='write {"text": "…"} on each line'))
    examples, num_cut = [], 0
    for context, word in passages:
        tokens, first = _encode(tokenizer, context, word)
        first = first if strict else len(tokens) - 1
        num_cut += len(tokens) > length + 1
        examples.append(tuple(windows_of(tokens, first, length)))
    notes = []
    if num_cut:
        which = f"{num_cut} of {counted(len(passages), 'passage')}"
        notes.append(f"{which} have more than the {length} tokens that the model sees: their right ends are kept")
    return TextTask(NAME, tuple(examples), partial(_summarize, strict=strict), tuple(notes))


def _passage(file: Path, number: int, line: str) -> tuple[str, str]:
    """What stands before the last word, and the word with its space."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            Problem(f"{file}, line {number} is no JSON: {error}", advice="LAMBADA is JSON lines")
        ) from error
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(Problem(f"{file}, line {number} has no text", advice='write an object {"text": "…"}'))
    if not has_bytes(text):
        message = f"{file}, line {number} has half of a surrogate pair, which is no text"
        raise DataError(Problem(message, advice="correct the line, or take it out"))
    words = text.split()
    if len(words) < 2:
        message = f"{file}, line {number} has no context: LAMBADA asks for a last word that others stand before"
        raise DataError(Problem(message, advice="take the line out"))
    context = text.rstrip()[: -len(words[-1])].rstrip()
    return context, " " + words[-1]


def _encode(tokenizer: Tokenizer, context: str, word: str) -> tuple[list[int], int]:
    """The tokens of a passage, and the place of the first one that is not the context's alone."""
    whole, before = tokenizer.encode(context + word), tokenizer.encode(context)
    # Some tokenizers join what stands before the word with it; a word has a token of its own at least.
    same = next((place for place, pair in enumerate(zip(whole, before, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(before), len(whole) - 1) if same is None else same
    return whole, max(1, first)


def _summarize(scores: Sequence[WindowScore], *, strict: bool) -> TaskResult:
    num_right = sum(score.all_right for score in scores)
    loss = -sum(score.log_probability for score in scores) / len(scores)
    what = "word" if strict else "token"
    metrics = {
        "accuracy": num_right / len(scores),
        "num_right": num_right,
        f"last_{what}_perplexity": perplexity(loss),
    }
    return TaskResult(NAME, metrics, len(scores), sum(score.num_targets for score in scores))
