"""From conversations to tokens, and which of them the model is to learn: those of the assistant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from megatron_ds.errors import ConfigError, DataError, Problem
from megatron_ds.tasks.examples import LeftOut
from megatron_ds.tasks.ragged import TokenTexts
from megatron_ds.tasks.sft.chat import ChatEncoder
from megatron_ds.tasks.sft.read import Conversation
from megatron_ds.tasks.sft.tokens import LearnedTokens
from megatron_ds.tokenizers import FlatIds, Tokenizer


@dataclass(frozen=True)
class SftExamples:
    """Encoded examples.

    Attributes:
        texts: the tokens of each, at most S + 1.
        is_learned: whether a token is one of the assistant's, bool, laid out as the ids of `texts`.
        left_out: conversations that are not used; log it.
        num_cut: examples of which tokens were cut off at the end.
    """

    texts: TokenTexts
    is_learned: NDArray[np.bool_]
    left_out: LeftOut
    num_cut: int

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int, /) -> LearnedTokens:
        """Example `index`."""
        start, end = self.texts.starts[index : index + 2].tolist()
        return LearnedTokens(self.texts.ids[start:end], self.is_learned[start:end])


def encode_sft(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, chat: ChatEncoder | None, seq_length: int
) -> SftExamples:
    """Encodes conversations.

    With a chat template: its text, of which the assistant's turns and the token that ends each are learned. Without:
    the prompt's tokens, then the response's, then the end-of-document token; the last two are learned.
    What is behind the last learned token, and what is longer than a sequence, is cut off at the end. Examples without a
    learned token are left out: those with an empty prompt or response, those whose prompt alone fills the sequence, and
    those that say one of the tokenizer's special tokens, which would pass for a turn's end.

    Args:
        conversations: the conversations.
        tokenizer: the run's tokenizer.
        chat: the tokenizer's chat template, or None: prompts and responses as they are.
        seq_length: S; with the last label, an example has S + 1 tokens.

    Raises:
        DataError: there is no template and a conversation is none of a prompt and a response, the template refuses it,
            or nothing is left.
        ConfigError: there is no template and the tokenizer has no end-of-document token.
    """
    encode = chat.encode if chat is not None else _PlainEncoder(tokenizer).encode
    kept: list[LearnedTokens] = []
    left_out = LeftOut()
    num_cut = 0
    for conversation in conversations:
        found = encode(conversation)
        if isinstance(found, str):
            left_out.add(found, conversation.place)
            continue
        whole = found.up_to_last_learned()
        cut = whole.first(seq_length + 1).up_to_last_learned()
        # The first token is no label.
        if not cut.is_learned[1:].any():
            left_out.add(f"without a token of a response in the first {seq_length + 1}", conversation.place)
            continue
        num_cut += len(cut.tokens) < len(whole.tokens)
        kept.append(cut)
    if not kept:
        advice = "correct the examples, or use a longer --seq-length"
        raise DataError(Problem(f"no example is left: {left_out.describe('example')}", advice=advice))
    texts = TokenTexts.of(FlatIds.of_arrays([each.tokens for each in kept]))
    return SftExamples(texts, np.concatenate([each.is_learned for each in kept]), left_out, num_cut)


class _PlainEncoder:
    """Prompts and responses without a template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.eod_id is None:
            raise ConfigError(
                Problem(
                    "the tokenizer has no end-of-document token, and no chat template: nothing ends a response",
                    advice="name its eos_token in tokenizer_config.json, or add a chat template",
                )
            )
        self._tokenizer = tokenizer
        self._eod_id = tokenizer.eod_id

    def encode(self, conversation: Conversation) -> LearnedTokens | str:
        """The tokens; or why there are none, for what is counted."""
        if not conversation.is_prompt_and_response:
            raise DataError(
                Problem(
                    f"{conversation.place} has turns, and the tokenizer has no chat template to write them with",
                    advice="use an HFTokenizer with a chat template, or give prompts and responses",
                )
            )
        prompt, response = (self._tokenizer.encode(message.content) for message in conversation.messages)
        if not prompt or not response:
            return f"with an empty {'response' if prompt else 'prompt'}"
        tokens = np.fromiter(chain(prompt, response, [self._eod_id]), np.int32)
        return LearnedTokens(tokens, np.arange(len(tokens)) >= len(prompt))
