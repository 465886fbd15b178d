"""Conversations as text, by the chat template that comes with a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatron_ds.tokenizers.hugging_face import load_transformers_tokenizer


class ChatTemplateError(Exception):
    """A conversation that the template refuses; the message is the template's own."""


class ChatTemplate:
    """A tokenizer's chat template, as transformers applies it.

    Args:
        tokenizer: a tokenizer of transformers that has a template.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = False) -> str:
        """A conversation as text, special tokens included.

        Args:
            messages: objects with ``role`` and ``content``, at least one.
            add_generation_prompt: end with what begins a turn of the assistant.

        Raises:
            ChatTemplateError: the template refuses it, for instance as roles don't alternate.
        """
        import jinja2

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(str(error)) from None
        return text


def load_chat_template(name_or_path: str) -> ChatTemplate | None:
    """The chat template of a tokenizer, or None when it has none.

    Args:
        name_or_path: a folder, its ``tokenizer.json``, or a name on the hub.

    Raises:
        ConfigError: there is no such tokenizer.
    """
    tokenizer = load_transformers_tokenizer(name_or_path)
    return None if tokenizer.chat_template is None else ChatTemplate(tokenizer)
