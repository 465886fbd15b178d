"""The tokenizer's files beside their weights, and the ids that start and end a text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megatron_ds.checkpoint.huggingface.bert_tokenizer import write_bert_wordpiece
from megatron_ds.checkpoint.huggingface.tokenizer_ids import own_tokenizer
from megatron_ds.errors import ConfigError
from megatron_ds.tokenizers.gpt2_bpe import load_gpt2_bpe_tokenizer
from megatron_ds.utils.logging import logger

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja"),
)
GENERATION_CONFIG_NAME = "generation_config.json"
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

# transformers 5 takes the model type's own class for these, whatever tokenizer_config.json names, and that class cuts
# texts into words by rules of its own. Only an "auto_map" to a class in a Python file escapes: without trust in that
# file, `tokenizer_class` counts; with it, the file's class. Source: MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS in
# transformers, models/auto/tokenization_auto.py.
_OWN_CLASS = {"qwen2": "Qwen2Tokenizer"}
_AS_IT_IS_NAME = "tokenizer_as_it_is.py"
_AS_IT_IS = '''"""The tokenizer of tokenizer.json as it is; see "auto_map" in tokenizer_config.json."""

from transformers import PreTrainedTokenizerFast


class TokenizerAsItIs(PreTrainedTokenizerFast):
    """Without the rules for words of the model type's own class."""
'''


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


def write_tokenizer(data: Mapping[str, Any], output: Path, fallback: Path, model_type: str) -> WrittenTokenizer:
    """Writes the files of the tokenizer that the options of a run name.

    Args:
        data: the options of the run's ``data`` block.
        output: the folder to write to.
        fallback: a folder with the files of an HFTokenizer whose own folder is gone: an import leaves them there.
        model_type: of the model in `output`: transformers chooses the class of the tokenizer by it.
    """
    kind = data.get("tokenizer_type")
    written = WrittenTokenizer({}, why_none=f"{kind} has no counterpart among the files of transformers")
    if kind is None:
        written = WrittenTokenizer(*_of_model(fallback), why_none="the checkpoint names no tokenizer")
    elif kind == "HFTokenizer":
        written = _write_hugging_face(str(data.get("tokenizer_name_or_path")), output, fallback)
    elif kind == "GPT2BPETokenizer":
        written = _write_gpt2_bpe(Path(str(data.get("vocab_file"))), Path(str(data.get("merge_file"))), output)
    elif kind in ("BertWordPieceLowerCase", "BertWordPieceCase"):
        written = _write_bert(Path(str(data.get("vocab_file"))), output, lower_case=kind == "BertWordPieceLowerCase")
    if written.why_none is None and data.get("vocab_extra_ids"):
        logger.warning("the sentinels of --vocab-extra-ids are not in the files of the tokenizer")
    ids = {**dict.fromkeys(_TOKEN_IDS), **written.token_ids}
    if ids["eos_token_id"] is None and model_type != "bert":
        ids["eos_token_id"] = _end_of_text_id(data, output)
    _make_loadable(output, ids, model_type)
    return replace(written, token_ids=ids)


def _end_of_text_id(data: Mapping[str, Any], output: Path) -> int | None:
    """The id that ended documents in training."""
    if (given := data.get("eod_id")) is not None:
        return int(given)
    tokenizer = own_tokenizer(data, output)
    return None if tokenizer is None else tokenizer.eod_id


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
    return WrittenTokenizer({"bos_token_id": tokenizer.eod_id, "eos_token_id": tokenizer.eod_id})


def _write_bert(vocab_file: Path, output: Path, *, lower_case: bool) -> WrittenTokenizer:
    try:
        return WrittenTokenizer(write_bert_wordpiece(vocab_file, output, lower_case=lower_case))
    except ConfigError as error:
        return WrittenTokenizer({}, why_none=error.problems[0].message)
    except OSError as error:
        return WrittenTokenizer({}, why_none=f"{vocab_file} can't be read: {error.strerror}")


def _make_loadable(output: Path, token_ids: Mapping[str, Any], model_type: str) -> None:
    """`AutoTokenizer` takes a tokenizer.json as it is only where a file beside it says so."""
    if not (output / "tokenizer.json").is_file():
        return
    config = output / "tokenizer_config.json"
    content = before = _read_object(config)
    if "tokenizer_class" not in content and "auto_map" not in content:
        content = {"tokenizer_class": "PreTrainedTokenizerFast", **_special_tokens(output, token_ids), **content}
    if _is_overruled(content, model_type):
        module, name = _AS_IT_IS_NAME.removesuffix(".py"), "TokenizerAsItIs"
        content = {**content, "auto_map": {"AutoTokenizer": [None, f"{module}.{name}"]}}
        (output / _AS_IT_IS_NAME).write_text(_AS_IT_IS, encoding="utf-8")
    if content != before:
        config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _is_overruled(config: Mapping[str, Any], model_type: str) -> bool:
    """Whether transformers would take another class of tokenizer than `config` names."""
    own, named = _OWN_CLASS.get(model_type), str(config.get("tokenizer_class") or "")
    return own is not None and bool(named) and named.removesuffix("Fast") != own and "auto_map" not in config


def _special_tokens(folder: Path, token_ids: Mapping[str, Any]) -> dict[str, str]:
    """The strings of the tokens that start and end a text."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = {}
    for key in ("bos_token_id", "eos_token_id"):
        token = backend.id_to_token(token_ids[key]) if isinstance(token_ids[key], int) else None
        if token is not None:
            tokens[key.removesuffix("_id")] = token
    return tokens


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
