"""The rules by which byte-level BPEs cut a text into words, as far as they are known here."""

from __future__ import annotations

from typing import Any

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# GPT-4 and Llama 3: up to three digits in a word.
THREE_DIGITS = rf"{_WORDS}|\p{{N}}{{1,3}}|{_OTHERS}"
# Qwen 2: one digit.
ONE_DIGIT = rf"{_WORDS}|\p{{N}}|{_OTHERS}"


def is_known_rule(pre_tokenizer: Any) -> bool:
    """Whether words are cut as GPT-2, GPT-4, Llama 3 or Qwen 2 do.

    Args:
        pre_tokenizer: that part of a ``tokenizer.json``. GPT-2's rule is the one that it calls ByteLevel.
    """
    if not isinstance(pre_tokenizer, dict):
        return False
    if pre_tokenizer["type"] == "ByteLevel":
        return bool(pre_tokenizer["use_regex"])
    parts = pre_tokenizer.get("pretokenizers", [])
    if [part["type"] for part in parts] != ["Split", "ByteLevel"]:
        return False
    split, byte_level = parts
    is_split = split["behavior"] == "Isolated" and not split["invert"]
    is_known = split["pattern"].get("Regex") in (THREE_DIGITS, ONE_DIGIT)
    return is_split and is_known and not byte_level["use_regex"] and not byte_level["add_prefix_space"]


def adds_prefix_space(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether a known rule puts a space before the text."""
    return bool(pre_tokenizer.get("add_prefix_space"))
