"""Small tokenizers with chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from megatron_ds.tasks.sft.chat import ChatEncoder
from megatron_ds.tasks.sft.read import Conversation, Message
from megatron_ds.tokenizers.chat_template import load_chat_template
from megatron_ds.tokenizers.fast import FastTokenizer
from megatron_ds.tokenizers.hugging_face import load_hugging_face_tokenizer, load_transformers_tokenizer
from tests.tokenizers.conftest import CORPUS, byte_level_bpe

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Plain words around the turns, spaces of the content cut off, and no token that ends a turn but the document's.
PLAIN = (
    "{% for message in messages %}{% if message.role == 'user' %}User: {{ message.content | trim }}\n"
    "{% elif message.role == 'assistant' %}Assistant: {{ message.content | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('no role ' + message.role) }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
# Llama 2's, without its system turns.
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
# As reasoning models have it: thoughts of earlier turns are left out.
FORGETTING = CHATML.replace("{{ message.content }}", "{{ '' if loop.last else 'short ' }}{{ message.content }}")


def save_tokenizer(folder: Path, template: str | None = CHATML) -> str:
    """Saves a byte-level BPE; returns its folder. GPT-2's post-processor leaves spaces out of a token's place."""
    folder.mkdir(exist_ok=True)
    tokenizer = byte_level_bpe(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", **({} if template is None else {"chat_template": template})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def save_metaspace_tokenizer(folder: Path) -> str:
    """Saves a tokenizer of Llama 2's kind, with a prefix space after each special token; returns its folder."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*CORPUS, *["[INST] the fox [/INST] jumps over"] * 5], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": INSTRUCT}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def load(folder: str) -> tuple[FastTokenizer, ChatEncoder, Any]:
    """Ours, the encoder of its template, and transformers' tokenizer."""
    tokenizer, template = load_hugging_face_tokenizer(folder), load_chat_template(folder)
    assert isinstance(tokenizer, FastTokenizer) and template is not None
    return tokenizer, ChatEncoder(tokenizer, template), load_transformers_tokenizer(folder)


def talk(*turns: tuple[str, str], place: str = "a.jsonl:1") -> Conversation:
    return Conversation(place, tuple(Message(*turn) for turn in turns), False)


def ask(prompt: str, response: str, place: str = "a.jsonl:1") -> Conversation:
    return Conversation(place, (Message("user", prompt), Message("assistant", response)), True)
