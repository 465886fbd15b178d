"""Tiny tokenizers, made on the spot."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from megatron_ds.tokenizers import Tokenizer

CORPUS = [
    "def one(): return 1",
    "the quick brown fox jumps",
    "naïve café ☕ and 日本語",
    "x = [1, 2, 3]  # spaces   kept\n",
]


@dataclass(frozen=True)
class Flags:
    tokenizer_type: str | None = None
    tokenizer_name_or_path: str | None = None
    tokenizer_model: str | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_extra_ids: int = 0


def encode_all(tokenizer: Tokenizer, texts: list[str], *, allow_special: bool = False) -> list[list[int]]:
    """The ids of each text, through the array of all."""
    flat = tokenizer.encode_flat(texts, allow_special=allow_special)
    return [part.tolist() for part in np.split(flat.ids, np.cumsum(flat.lengths)[:-1])]


def byte_level_bpe(special_tokens: list[str], vocab_size: int = 300) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "jump", "##s", "##ing", "cafe", "café"]
BERT_WORDS += [
    "Fox",
    "日",
    "本",
    "!",
    "[",
    "]",
    "mask",
    "##k",
    "<",
    ">",
    "extra",
    "_",
    "id",
    "0",
    ".",
    "hello",
    "Hello",
]
BERT_WORDS += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijlmnopqrtuvwxyz")]


@pytest.fixture
def bert_vocab(tmp_path: Path) -> Path:
    """A BERT vocabulary with words, pieces, accents and Chinese characters, for small and for capital letters."""
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in BERT_WORDS), encoding="utf-8")
    return path


@pytest.fixture
def bpe_folder(tmp_path: Path) -> Path:
    """A byte-level BPE whose end-of-document token <|endoftext|> has id 0, with 3 tokens added afterwards."""
    tokenizer = byte_level_bpe(["<|endoftext|>"])
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.add_special_tokens([AddedToken("<mark>", special=True)])
    folder = tmp_path / "bpe"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


@pytest.fixture
def gpt2_files(tmp_path: Path) -> tuple[Path, Path]:
    byte_level_bpe(["<|endoftext|>"]).model.save(str(tmp_path))
    return tmp_path / "vocab.json", tmp_path / "merges.txt"


@pytest.fixture
def sentence_piece_model(tmp_path: Path) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 5), model_writer=model, vocab_size=60, minloglevel=2, hard_vocab_limit=False
    )
    path = tmp_path / "tiny.model"
    path.write_bytes(model.getvalue())
    return path
