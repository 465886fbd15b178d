from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.errors import DataError
from megatron_ds.tasks.sft.read import Conversation
from megatron_ds.tasks.sft.tokens import LearnedTokens
from megatron_ds.tokenizers.chat_template import load_chat_template
from megatron_ds.tokenizers.fast import FastTokenizer
from tests.tasks.chat import CHATML, FORGETTING, PLAIN, ask, load, save_metaspace_tokenizer, save_tokenizer, talk

TURNS = talk(
    ("user", "the quick fox?\n"),
    ("assistant", " jumps ☕ 日本\n\n over  "),
    ("user", "  naïve "),
    ("assistant", "\n\ncafé"),
)


def learned_pieces(tokenizer: FastTokenizer, example: LearnedTokens | str) -> list[str]:
    """The texts of the runs of learned tokens."""
    assert isinstance(example, LearnedTokens)
    runs: list[list[int]] = []
    before = False
    for token, is_learned in zip(example.tokens.tolist(), example.is_learned.tolist(), strict=True):
        if is_learned:
            runs = [*runs[:-1], [*runs[-1], token]] if before else [*runs, [token]]
        before = is_learned
    return [tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        (CHATML, [" jumps ☕ 日本\n\n over  <|im_end|>", "\n\ncafé<|im_end|>"]),
        # "Assistant: " ends with a space that is no part of the turn.
        (PLAIN, ["jumps ☕ 日本\n\n over<|endoftext|>", "café<|endoftext|>"]),
    ],
)
def test_chat_encoder_has_transformers_tokens_and_learns_the_assistants(
    tmp_path: Path, template: str, learned: list[str]
) -> None:
    tokenizer, chat, theirs = load(save_tokenizer(tmp_path, template))
    example = chat.encode(TURNS)
    assert isinstance(example, LearnedTokens)
    messages = [message.as_dict() for message in TURNS.messages]
    assert example.tokens.tolist() == theirs.apply_chat_template(messages)["input_ids"]
    assert learned_pieces(tokenizer, example) == learned


def test_chat_encoder_with_prefix_spaces_has_transformers_tokens(tmp_path: Path) -> None:
    tokenizer, chat, theirs = load(save_metaspace_tokenizer(tmp_path))
    turns = talk(("user", "the fox"), ("assistant", "jumps"), ("user", "quick"), ("assistant", "fox jumps"))
    example = chat.encode(turns)
    assert isinstance(example, LearnedTokens)
    ids = theirs.apply_chat_template([message.as_dict() for message in turns.messages])["input_ids"]
    assert example.tokens.tolist() == ids != tokenizer.encode(theirs.decode(ids), allow_special=True)
    learned = [token for run in learned_pieces(tokenizer, example) for token in run.split(" ")]
    assert learned == ["▁jumps", "▁", "</s>", "▁fox", "▁jumps", "▁", "</s>"]


def test_chat_encoder_agrees_with_generation_blocks_of_transformers(tmp_path: Path) -> None:
    marked = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    _, chat, theirs = load(save_tokenizer(tmp_path, marked))
    example = chat.encode(TURNS)
    assert isinstance(example, LearnedTokens)
    found = theirs.apply_chat_template(
        [message.as_dict() for message in TURNS.messages], return_assistant_tokens_mask=True
    )
    assert example.tokens.tolist() == found["input_ids"]
    assert example.is_learned.tolist() == found["assistant_masks"]


def test_chat_encoder_prompt_and_response_are_two_turns(tmp_path: Path) -> None:
    tokenizer, chat, _ = load(save_tokenizer(tmp_path))
    example = chat.encode(ask("the fox", "jumps"))
    assert learned_pieces(tokenizer, example) == ["jumps<|im_end|>"]
    assert chat.encode(ask("", "jumps")) == "with an empty prompt"
    assert chat.encode(ask("the fox", "")) == "with an empty response"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_chat_encoder_leaves_out_what_forges_a_turn(tmp_path: Path, role: str) -> None:
    _, chat, _ = load(save_tokenizer(tmp_path))
    content = {"user": "the fox", "assistant": "jumps"}
    content[role] += "<|im_end|>"
    assert chat.encode(talk(*content.items())) == "with the string of a special token in a message"


def message(folder: str, conversation: Conversation) -> str:
    _, chat, _ = load(folder)
    with pytest.raises(DataError) as caught:
        chat.encode(conversation)
    return str(caught.value)


def test_chat_encoder_template_that_changes_earlier_turns_is_an_error(tmp_path: Path) -> None:
    text = message(save_tokenizer(tmp_path, FORGETTING), TURNS)
    assert "a.jsonl:1: the tokenizer's chat template writes the beginning of this conversation otherwise" in text
    assert "'the quick fox?\\n<|im_end|>\\n" in text
    assert "becomes 'short the quick fox?" in text
    assert "split the conversation into one example for each turn" in text


def test_chat_encoder_role_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    text = message(save_tokenizer(tmp_path, PLAIN), talk(("system", "be kind"), ("assistant", "yes")))
    assert "a.jsonl:1: the tokenizer's chat template refuses it: no role system" in text


def test_load_chat_template_of_a_tokenizer_without_one_is_none(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, None)
    assert load_chat_template(folder) is None
    save_tokenizer(tmp_path)
    # The file in the folder stands for the folder.
    assert load_chat_template(f"{folder}/tokenizer.json") is not None


def test_load_chat_template_reads_the_file_beside_the_tokenizer(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, None)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    template = load_chat_template(folder)
    assert template is not None and template.render([{"role": "user", "content": "hello"}]) == "hello!"
