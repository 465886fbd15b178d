"""Whether transformers gives texts the ids that our tokenizer gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_ds.config.blocks import DataConfig
from megatron_ds.errors import CheckpointError, ConfigError, Problem
from megatron_ds.tokenizers import Tokenizer, build_tokenizer

# Where rules that cut texts into words differ: numbers, spaces, lines, signs, letters that have two spellings.
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Don't stop: it's 1234567.89, isn't it?  We'LL see…",
    " leading,  double and trailing spaces \n\n\tand lines\r\n",
    "def add(a, b):\n    return a+b  # x_1 != y_2\n",
    "d\u00e9j\u00e0, de\u0301ja\u0300, \u00bd, \ufb01n, na\u00efve, \u212b",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 \U0001f600",
)


# One of these is enough for `AutoTokenizer`.
_ENOUGH = ("tokenizer.json", "vocab.txt")


def has_tokenizer(folder: Path) -> bool:
    """Whether transformers can load a tokenizer from `folder` by its files."""
    return any((folder / name).is_file() for name in _ENOUGH)


def own_tokenizer(data: Mapping[str, Any], folder: Path) -> Tokenizer | None:
    """The tokenizer of a run; None where its files are gone.

    Args:
        data: the options of the run's ``data`` block.
        folder: with the files of a model. An HFTokenizer is built from them: its own may be on the hub, or gone.
    """
    if not data.get("tokenizer_type"):
        return None
    # Options of other versions don't concern the tokenizer.
    options = {name: data[name] for name in DataConfig.model_fields if name in data}
    if options["tokenizer_type"] == "HFTokenizer":
        if not has_tokenizer(folder):
            return None
        options["tokenizer_name_or_path"] = str(folder)
    try:
        return build_tokenizer(DataConfig(**options))
    except (ConfigError, ValueError, TypeError):
        return None


def check_ids(tokenizer: Tokenizer, folder: Path) -> int:
    """Compares the ids of a few texts with those of the tokenizer that transformers loads from `folder`.

    Returns:
        The number of texts.

    Raises:
        CheckpointError: transformers gives other ids, or can't load the tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # Whatever its many classes raise.
        raise CheckpointError(
            Problem(f"transformers can't load the tokenizer of {folder}: {error}", advice="correct its files")
        ) from error
    other = [
        text for text in TEXTS if theirs(text, add_special_tokens=False)["input_ids"] != list(tokenizer.encode(text))
    ]
    if other:
        raise CheckpointError(
            Problem(
                f"transformers gives {len(other)} of {len(TEXTS)} texts other ids than our tokenizer, "
                f"{other[0]!r} among them: it loads {folder} as {type(theirs).__name__}",
                advice=f"correct tokenizer_class in {folder / 'tokenizer_config.json'}, or don't use its AutoTokenizer",
            )
        )
    return len(TEXTS)
