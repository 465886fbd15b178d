"""Conversations through a chat template, with the exact places of the assistant's turns."""

from __future__ import annotations

import numpy as np

from megatron_ds.errors import DataError, Problem
from megatron_ds.tasks.sft.read import ASSISTANT, Conversation
from megatron_ds.tasks.sft.tokens import LearnedTokens
from megatron_ds.tokenizers.chat_template import ChatTemplate, ChatTemplateError
from megatron_ds.tokenizers.fast import FastTokenizer


class ChatEncoder:
    """Encodes conversations with the template of their tokenizer.

    The whole text becomes tokens at once, as transformers' ``apply_chat_template`` has it. A turn of the assistant
    begins where the conversation up to it ends when it is rendered with ``add_generation_prompt``, and ends where
    the conversation ends that stops with it; both must be beginnings of the whole text. A token is the
    assistant's when it begins in such a turn, up to the turn's last special token: line ends behind it are the
    template's own.

    Args:
        tokenizer: the tokenizer.
        template: its template.
    """

    def __init__(self, tokenizer: FastTokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        special = tokenizer.special_tokens()
        self._special = tuple(special)
        self._special_ids = np.array(sorted(special.values()), np.int32)

    def encode(self, conversation: Conversation) -> LearnedTokens | str:
        """The tokens; or why there are none, for what is counted.

        Raises:
            DataError: the template refuses the conversation, or writes its beginning otherwise when it goes on.
        """
        for message in conversation.messages:
            if any(token in message.content for token in self._special):
                return "with the string of a special token in a message"
        if conversation.is_prompt_and_response:
            prompt, response = conversation.messages
            if not prompt.content or not response.content:
                return f"with an empty {'response' if prompt.content else 'prompt'}"
        text, spans = self._render(conversation)
        ids, starts = self._tokenizer.encode_with_starts(text)
        tokens, places = np.array(ids, np.int32), np.array(starts, np.int64)
        is_special = np.isin(tokens, self._special_ids)
        is_learned = np.zeros(len(tokens), np.bool_)
        for start, end in spans:
            in_turn = np.flatnonzero((places >= start) & (places < end))
            ends = in_turn[is_special[in_turn]]
            is_learned[in_turn[in_turn <= ends[-1]] if len(ends) else in_turn] = True
        return LearnedTokens(tokens, is_learned)

    def _render(self, conversation: Conversation) -> tuple[str, list[tuple[int, int]]]:
        """The whole text, and where in it each turn of the assistant begins and ends."""
        messages = [message.as_dict() for message in conversation.messages]
        try:
            text = self._template.render(messages)
            borders = [
                (
                    self._template.render(messages[:number], add_generation_prompt=True),
                    self._template.render(messages[: number + 1]),
                )
                for number, message in enumerate(conversation.messages)
                if message.role == ASSISTANT
            ]
        except ChatTemplateError as error:
            advice = "change the conversation to what the template takes"
            found = f"{conversation.place}: the tokenizer's chat template refuses it: {error}"
            raise DataError(Problem(found, advice=advice)) from None
        for beginning in (each for border in borders for each in border):
            if not text.startswith(beginning):
                raise DataError(_no_beginning(conversation.place, beginning, text))
        return text, [(len(before), len(after)) for before, after in borders]


def _no_beginning(place: str, beginning: str, text: str) -> Problem:
    same = next(
        (number for number, (one, other) in enumerate(zip(beginning, text, strict=False)) if one != other), len(text)
    )
    return Problem(
        f"{place}: the tokenizer's chat template writes the beginning of this conversation otherwise when it goes on, "
        f"so the assistant's tokens can't be told: {beginning[same : same + 40]!r} becomes {text[same : same + 40]!r} "
        f"at character {same}",
        advice="change the template so that a turn stays as it is when others follow, "
        "or split the conversation into one example for each turn of the assistant",
    )
