"""Which library encodes documents. The ids are the same."""

from __future__ import annotations

from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.tokenizers.base import Tokenizer
from megatron_ds.tokenizers.fast import FastTokenizer
from megatron_ds.tokenizers.gigatoken_backend import GigatokenTokenizer, why_not_installed, why_not_proven

BACKENDS = ("auto", "tokenizers", "gigatoken")


def with_backend(tokenizer: Tokenizer, backend: str) -> tuple[Tokenizer, str]:
    """`tokenizer`, encoding documents with another library where that is asked for.

    Args:
        tokenizer: the tokenizer.
        backend: ``tokenizers``, ``gigatoken``, or ``auto``: gigatoken where it is installed and proven to give the
            same ids.

    Returns:
        The tokenizer, and what to tell the user about the choice; empty when there was none.

    Raises:
        ConfigError: gigatoken is asked for by name and can't be used; says why.
    """
    if not isinstance(tokenizer, FastTokenizer):
        if backend == "gigatoken":
            raise ConfigError(_no_choice(tokenizer))
        return tokenizer, ""
    if backend == "auto":
        return _best(tokenizer)
    return (GigatokenTokenizer(tokenizer), "gigatoken encodes") if backend == "gigatoken" else (tokenizer, "")


def _best(tokenizer: FastTokenizer) -> tuple[Tokenizer, str]:
    missing = why_not_installed()
    if missing:
        if why_not_proven(tokenizer.content()):
            return tokenizer, ""
        return (
            tokenizer,
            f"tokenizers encodes; gigatoken (pip install megatron-ds[fast]) would be faster, but {missing}",
        )
    try:
        return GigatokenTokenizer(tokenizer), "gigatoken encodes"
    except ConfigError as error:
        return tokenizer, f"tokenizers encodes; {error.problems[0].message}"


def _no_choice(tokenizer: Tokenizer) -> Problem:
    return Problem(
        f"gigatoken can't encode with this tokenizer: {type(tokenizer).__name__} is not a byte-level BPE",
        sources=(Source("tokenizer_backend", "gigatoken", "--tokenizer-backend"),),
        advice="leave --tokenizer-backend out",
    )
