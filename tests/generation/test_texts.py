"""Texts from tokens."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_ds.generation.options import Completion, Request
from megatron_ds.generation.texts import new_text
from megatron_ds.tokenizers.plain import ByteTokenizer


class _Words(ByteTokenizer):
    """Leaves out the space before the first word, as SentencePiece does."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(f"w{token}" for token in ids)


def test_new_text_keeps_the_space_after_the_prompt() -> None:
    assert new_text(Completion(Request((1, 2)), (3, 4), is_ended=False), _Words()) == " w3 w4"


def test_new_text_is_without_the_token_that_ended_it() -> None:
    tokens = (*b"bc", 256)
    assert new_text(Completion(Request((97,)), tokens, is_ended=True), ByteTokenizer()) == "bc"
    assert new_text(Completion(Request((97,)), tokens, is_ended=False), ByteTokenizer()) == "bc<|endoftext|>"


def test_new_text_of_a_character_that_the_prompt_begins_is_decoded_by_itself() -> None:
    first, second = "ä".encode()
    assert new_text(Completion(Request((first,)), (second, 97), is_ended=False), ByteTokenizer()) == "�a"
