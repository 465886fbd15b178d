"""Changes to the content of a ``tokenizer.json`` that settle how special tokens in a text are seen."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

_SPACE = "▁"
# Llama 2's: a prefix space for every stretch of text, then spaces to marks.
_PREFIX_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": _SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    ],
}


def without_pieces(content: dict[str, Any], pieces: Collection[str]) -> dict[str, Any]:
    """A copy in which no text can give the ids of `pieces`; all other ids of a text stay the same.

    Ids and scores keep their places: a piece is not taken out but gets a name that no text has.
    """
    names = {piece: _name_no_text_has(piece) for piece in pieces}
    model = dict(content["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not _makes(pair, pieces)]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    added = [token for token in content["added_tokens"] if token["content"] not in pieces]
    return {**content, "model": model, "added_tokens": added, "post_processor": None}


def _name_no_text_has(piece: str) -> str:
    # A code point that Unicode keeps free of characters for ever, and a hash that a text would have to be made for.
    return "\ufdd0" + hashlib.sha256(piece.encode("utf-8")).hexdigest()


def _makes(pair: str | list[str], pieces: Collection[str]) -> bool:
    first, second = pair.split(" ") if isinstance(pair, str) else pair
    return any(piece in pieces for piece in (first, second, first + second))


def with_prefix_at_start_only(content: dict[str, Any]) -> dict[str, Any] | None:
    """A copy that puts a prefix space before the text, but not after each special token in it.

    Returns:
        The copy; None when there is nothing to change.
    """
    pre_tokenizer = content["pre_tokenizer"]
    if pre_tokenizer is None and content["normalizer"] == _PREFIX_NORMALIZER:
        metaspace = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "first", "split": False}
        return {**content, "normalizer": None, "pre_tokenizer": metaspace}
    changed = _first_only(pre_tokenizer)
    return {**content, "pre_tokenizer": changed} if changed != pre_tokenizer else None


def _first_only(pre_tokenizer: Any) -> Any:
    if not isinstance(pre_tokenizer, dict):
        return pre_tokenizer
    if pre_tokenizer["type"] == "Sequence":
        return {**pre_tokenizer, "pretokenizers": [_first_only(each) for each in pre_tokenizer["pretokenizers"]]}
    if pre_tokenizer.get("prepend_scheme") == "always":
        return {**pre_tokenizer, "prepend_scheme": "first"}
    return pre_tokenizer
