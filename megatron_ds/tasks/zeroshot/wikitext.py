"""WikiText-103 (Merity et al. 2016): the perplexity of a text, counted by the words of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_ds.errors import DataError, Problem
from megatron_ds.generation.windows import windows_of
from megatron_ds.tasks.zeroshot.job import TextTask
from megatron_ds.tasks.zeroshot.results import TaskResult, perplexity
from megatron_ds.tasks.zeroshot.text_file import read_text
from megatron_ds.tokenizers import Tokenizer

if TYPE_CHECKING:
    from megatron_ds.generation.scoring import WindowScore

NAME = "WIKITEXT103"

# In this order. A string is replaced as it stands, a pattern with the group inside of it.
_FIRST = {"s '": "s'", " @-@ ": "-", " @,@ ": ",", " @.@ ": "."} | {f" {mark} ": f"{mark} " for mark in ":;.!?,"}
_PAIRS = ((r"\(", r"\)"), (r"\[", r"\]"), ("{", "}"), ('"', '"'), ("'", "'"))
_LAST = {
    "= = = =": "====",
    "= = =": "===",
    "= =": "==",
    " \N{DEGREE SIGN} ": "\N{DEGREE SIGN}",
    " \n": "\n",
    "\n ": "\n",
    " N ": " 1 ",
    " 's": "'s",
}


def detokenize(text: str) -> str:
    """The text without the file's spaces around punctuation, by the rules of Megatron's task and of the harness.

    Args:
        text: as the file has it: ``the 1 @,@ 000 ( or so ) " words "``.
    """
    for spaced, written in _FIRST.items():
        text = text.replace(spaced, written)
    for opening, closing in _PAIRS:
        left, right = opening[-1], closing[-1]
        pattern = rf"{opening}\s*([^{re.escape(right)}]*?)\s*{closing}"
        text = re.sub(pattern, rf"{left}\1{right}", text)
    for spaced, written in _LAST.items():
        text = text.replace(spaced, written)
    return text


def num_words(text: str) -> int:
    """Words of the file as it is: what stands between single spaces. The end of a line is one of them."""
    return len(text.strip().split(" "))


def wikitext_task(file: Path, tokenizer: Tokenizer, length: int, *, stride: int) -> TextTask:
    """The text of a file, as one document without a token before it: its first token is not scored.

    Args:
        file: the raw text, such as ``wiki.test.tokens``.
        tokenizer: the model's.
        length: tokens that the model sees at once.
        stride: targets of each window after the first, at most `length`.

    Raises:
        DataError: the file can't be read, or has no two words or tokens.
    """
    text = read_text(file)
    tokens, words = tokenizer.encode(detokenize(text)), num_words(text)
    if len(tokens) < 2 or words < 2:
        raise DataError(Problem(f"{file} has fewer than two words: there is nothing to score"))
    windows = tuple(windows_of(tokens, 1, length, stride))
    return TextTask(NAME, (windows,), partial(_summarize, words=words))


def _summarize(scores: Sequence[WindowScore], *, words: int) -> TaskResult:
    (score,) = scores
    loss = -score.log_probability / score.num_targets
    # Megatron's ratio: (tokens - 1) / (words - 1).
    ratio = score.num_targets / (words - 1)
    metrics = {
        "loss": loss,
        "perplexity": perplexity(loss),
        "word_perplexity": perplexity(loss * ratio),
        "token_ratio": ratio,
    }
    return TaskResult(NAME, metrics, 1, score.num_targets)
