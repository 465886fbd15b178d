"""A tokenizer's identity: equal when the same text gives the same ids."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers


def fingerprint_of(*parts: object) -> str:
    """SHA-256, in hex, of values that JSON can hold; the order of keys in a dict doesn't matter."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def fast_fingerprint(backend: tokenizers.Tokenizer) -> str:
    """The fingerprint of a tokenizer of the `tokenizers` library.

    Covers the normaliser, the pre-tokenizer, the model and the added tokens. Leaves out what changes no id of a
    document: the decoder, the post-processor (no special tokens are put around a text), truncation and padding, which
    are off, and how a special token is matched, as documents have none. Settings that are off don't count, so that a
    file written by a library that has one setting more gives the same fingerprint.
    """
    content: dict[str, Any] = json.loads(backend.to_str())
    model = _settings_that_are_on(content["model"])
    added = content["added_tokens"]
    ordinary = [token for token in added if not token["special"]]
    special = {token["content"]: token["id"] for token in added if token["special"]}
    # A special token that is an entry of the vocabulary is there already: files differ in whether they list it again.
    vocab = content["model"].get("vocab")
    if isinstance(vocab, dict):
        special = {text: number for text, number in special.items() if vocab.get(text) != number}
    return fingerprint_of(content["normalizer"], content["pre_tokenizer"], model, ordinary, special)


def _settings_that_are_on(model: dict[str, Any]) -> dict[str, Any]:
    # By identity: the number 0 is an id, and equal to False.
    return {name: value for name, value in model.items() if not (value is None or value is False or value == "")}
