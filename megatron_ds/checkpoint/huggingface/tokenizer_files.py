"""The tokenizer's files beside their weights, and the ids that start and end a text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megatron_ds.errors import ConfigError
from megatron_ds.tokenizers.gpt2_bpe import END_OF_TEXT, load_gpt2_bpe_tokenizer
from megatron_ds.utils.logging import logger

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja"),
)
GENERATION_CONFIG_NAME = "generation_config.json"
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class WrittenTokenizer:
    """What was written of a tokenizer.

    Attributes:
        token_ids: ``bos_token_id``, ``eos_token_id`` and ``pad_token_id``, None where there is none.
        generation: their settings of generation, where the tokenizer came with some.
        why_none: why no files were written; None when they were.
    """

    token_ids: Mapping[str, Any]
    generation: Mapping[str, Any] | None = None
    why_none: str | None = None


def write_tokenizer(data: Mapping[str, Any], output: Path, fallback: Path) -> WrittenTokenizer:
    """Writes the files of the tokenizer that the options of a run name.

    Args:
        data: the options of the run's ``data`` block.
        output: the folder to write to.
        fallback: a folder with the files of an HFTokenizer whose own folder is gone: an import leaves them there.
    """
    kind = data.get("tokenizer_type")
    written = WrittenTokenizer({}, why_none=f"{kind} has no counterpart among the files of transformers")
    if kind is None:
        written = WrittenTokenizer(*_of_model(fallback), why_none="the checkpoint names no tokenizer")
    elif kind == "HFTokenizer":
        written = _write_hugging_face(str(data.get("tokenizer_name_or_path")), output, fallback)
    elif kind == "GPT2BPETokenizer":
        written = _write_gpt2_bpe(Path(str(data.get("vocab_file"))), Path(str(data.get("merge_file"))), output)
    if written.why_none is None and data.get("vocab_extra_ids"):
        logger.warning("the sentinels of --vocab-extra-ids are not in the files of the tokenizer")
    ids = {**dict.fromkeys(_TOKEN_IDS), **written.token_ids}
    if ids["eos_token_id"] is None:
        ids["eos_token_id"] = data.get("eod_id")
    return replace(written, token_ids=ids)


def copy_tokenizer_files(source: Path, output: Path) -> bool:
    """Copies what `source` has of a tokenizer's files; whether there was any."""
    found = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    for file in found:
        shutil.copyfile(file, output / file.name)
    return bool(found)


def _write_hugging_face(name: str, output: Path, fallback: Path) -> WrittenTokenizer:
    source = Path(name)
    if not source.exists() and fallback.is_dir():
        source = fallback
    if source.is_file():
        shutil.copyfile(source, output / "tokenizer.json")
        for other in ("tokenizer_config.json", "special_tokens_map.json"):
            if (source.parent / other).is_file():
                shutil.copyfile(source.parent / other, output / other)
    elif source.is_dir():
        if not copy_tokenizer_files(source, output):
            return WrittenTokenizer({}, why_none=f"{source} holds no files of a tokenizer")
    elif (why_not := _save_from_cache(name, output)) is not None:
        return WrittenTokenizer({}, why_none=why_not)
    token_ids = _special_ids(output)
    _make_loadable(output, None)
    if source.is_dir():
        said, generation = _of_model(source)
        return WrittenTokenizer({**token_ids, **said}, generation)
    return WrittenTokenizer(token_ids)


def _of_model(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What the files of a model beside its tokenizer say: ids of tokens, and settings of generation or None."""
    generation = _read_object(folder / GENERATION_CONFIG_NAME)
    said = {**_read_object(folder / "config.json"), **generation}
    return {key: said[key] for key in _TOKEN_IDS if key in said}, generation or None


def _save_from_cache(name: str, output: Path) -> str | None:
    """Saves a tokenizer of the hub that this machine has kept; or says why it can't."""
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(name, local_files_only=True).save_pretrained(output)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"{name} is neither a file or folder here nor kept from the hub: {reason}"
    return None


def _write_gpt2_bpe(vocab_file: Path, merge_file: Path, output: Path) -> WrittenTokenizer:
    try:
        tokenizer = load_gpt2_bpe_tokenizer(vocab_file, merge_file)
    except ConfigError as error:
        return WrittenTokenizer({}, why_none=error.problems[0].message)
    shutil.copyfile(vocab_file, output / "vocab.json")
    shutil.copyfile(merge_file, output / "merges.txt")
    # The same ids whatever transformers makes of the two files above.
    (output / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    _make_loadable(output, END_OF_TEXT if tokenizer.eod_id is not None else None)
    return WrittenTokenizer({"bos_token_id": tokenizer.eod_id, "eos_token_id": tokenizer.eod_id})


def _make_loadable(output: Path, end_of_text: str | None) -> None:
    """`AutoTokenizer` takes a tokenizer.json as it is only where a file beside it says so."""
    config = output / "tokenizer_config.json"
    if config.is_file() or not (output / "tokenizer.json").is_file():
        return
    content = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if end_of_text is not None:
        content |= {"bos_token": end_of_text, "eos_token": end_of_text}
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _special_ids(folder: Path) -> dict[str, int | None]:
    """The ids of the tokens that the files of a tokenizer name as those that start, end and fill up a text."""
    import tokenizers

    if not (folder / "tokenizer.json").is_file():
        return {}
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = {**_read_object(folder / "special_tokens_map.json"), **_read_object(folder / "tokenizer_config.json")}
    ids: dict[str, int | None] = {}
    for key in _TOKEN_IDS:
        token = named.get(key.removesuffix("_id"))
        # The token is a string, or an object with the string and its matching rules.
        text = token.get("content") if isinstance(token, dict) else token
        ids[key] = backend.token_to_id(text) if isinstance(text, str) else None
    return ids


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
