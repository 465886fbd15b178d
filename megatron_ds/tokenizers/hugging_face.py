"""Tokenizers of Hugging Face: a tokenizer.json read directly, anything else through transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.tokenizers.base import Tokenizer
from megatron_ds.tokenizers.fast import FastTokenizer

if TYPE_CHECKING:
    import tokenizers

# Used when no file beside tokenizer.json says which token ends a text.
USUAL_EOS_TOKENS = ("<|endoftext|>", "</s>", "<eos>")
HUB_TIMEOUT_SECONDS = 5.0


def load_hugging_face_tokenizer(name_or_path: str, vocab_extra_ids: int = 0) -> Tokenizer:
    """Loads a tokenizer from a ``tokenizer.json``, a folder, or the hub.

    A ``tokenizer.json`` is read by the `tokenizers` library alone: importing transformers takes seconds.

    The end of a document is the ``eos_token`` of ``tokenizer_config.json`` or ``special_tokens_map.json``; without
    these, ``<|endoftext|>``, ``</s>`` or ``<eos>`` when it is a special token; else None.

    Args:
        name_or_path: the file, the folder, or the name on the hub.
        vocab_extra_ids: sentinels ``<extra_id_0>`` … that get ids after the vocabulary.

    Raises:
        ConfigError: there is no such file, folder or hub name, or it is no tokenizer.
    """
    path = Path(name_or_path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.is_file():
        return _load_file(file, vocab_extra_ids)
    if path.is_dir():
        return _load_with_transformers(name_or_path, vocab_extra_ids)
    if not _looks_like_path(name_or_path):
        return _load_from_hub(name_or_path, vocab_extra_ids)
    raise ConfigError(_problem(name_or_path, f"tokenizer not found: {name_or_path}"))


def _looks_like_path(name: str) -> bool:
    """Whether `name` can't be a hub name, which is ``name`` or ``owner/name``."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith((".json", ".model"))


def _load_file(file: Path, vocab_extra_ids: int) -> Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises bare Exception for whatever is wrong in the file.
        raise ConfigError(_problem(str(file), f"{file} is not a tokenizer.json: {error}")) from None
    return FastTokenizer(backend, _eod_id(backend, file.parent), vocab_extra_ids)


def _eod_id(backend: tokenizers.Tokenizer, folder: Path) -> int | None:
    named = _named_eos_token(folder)
    if named is None:
        special = {
            token.content: number for number, token in backend.get_added_tokens_decoder().items() if token.special
        }
        return next((special[token] for token in USUAL_EOS_TOKENS if token in special), None)
    eod_id: int | None = backend.token_to_id(named)
    if eod_id is None:
        # Going on without it, or with another model's token, would make the document borders vanish.
        raise ConfigError(
            Problem(
                f"eos_token {named!r} is not in the vocabulary of {folder / 'tokenizer.json'}",
                advice="add the token to tokenizer.json, or correct tokenizer_config.json beside it",
            )
        )
    return eod_id


def _named_eos_token(folder: Path) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(Problem(f"{file} is not JSON: {error}", advice="restore or remove the file")) from None
        token = content.get("eos_token") if isinstance(content, dict) else None
        # The token is a string, or an object with the string and its matching rules.
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None


def _load_from_hub(name: str, vocab_extra_ids: int) -> Tokenizer:
    why_not = _why_hub_does_not_have(name)
    return _load_with_transformers(name, vocab_extra_ids, why_not)


def _why_hub_does_not_have(name: str) -> str | None:
    """Asks the hub once, for a few seconds at most; None when it has the name.

    transformers asks a dozen times, for most of a minute, when nobody answers: too long for a name that was misspelt.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_SECONDS)
    except Exception as error:  # Its own errors, those of the library below, and those of a name that can't be one.
        return _first_line(error)
    return None


def _load_with_transformers(name_or_path: str, vocab_extra_ids: int, why_not_hub: str | None = None) -> Tokenizer:
    """Loads what has no tokenizer.json.

    Args:
        name_or_path: a folder, or a name on the hub.
        vocab_extra_ids: sentinels after the vocabulary.
        why_not_hub: why the hub can't be asked, so that only what it gave earlier counts; None: it can be.
    """
    tokenizer = _from_pretrained(name_or_path, why_not_hub)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(_problem(name_or_path, f"{name_or_path!r} has no fast (`tokenizers`) implementation"))
    return FastTokenizer(backend, tokenizer.eos_token_id, vocab_extra_ids)


def load_transformers_tokenizer(name_or_path: str) -> Any:
    """The tokenizer as transformers has it, for what is not in `tokenizer.json`: its chat template.

    Args:
        name_or_path: a folder, its ``tokenizer.json``, or a name on the hub.

    Raises:
        ConfigError: there is no such file, folder or hub name, or it is no tokenizer.
    """
    path = Path(name_or_path)
    if path.is_dir() or path.is_file():
        return _from_pretrained(str(path if path.is_dir() else path.parent))
    if _looks_like_path(name_or_path):
        raise ConfigError(_problem(name_or_path, f"tokenizer not found: {name_or_path}"))
    return _from_pretrained(name_or_path, _why_hub_does_not_have(name_or_path))


def _from_pretrained(name_or_path: str, why_not_hub: str | None = None) -> Any:
    from transformers import AutoTokenizer

    is_folder = Path(name_or_path).is_dir()
    try:
        return AutoTokenizer.from_pretrained(name_or_path, local_files_only=is_folder or why_not_hub is not None)
    except (OSError, ValueError, KeyError, ImportError) as error:
        where = f"no such file or folder, nothing kept from the hub, and asking it failed: {why_not_hub}"
        found = where if why_not_hub else _first_line(error)
        raise ConfigError(_problem(name_or_path, f"no tokenizer found for {name_or_path!r}: {found}")) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _problem(name_or_path: str, message: str) -> Problem:
    return Problem(
        message,
        sources=(Source("tokenizer_name_or_path", name_or_path, "--tokenizer-name-or-path"),),
        advice="give a tokenizer.json, a folder that has one, or the name of a tokenizer on the hub",
    )
