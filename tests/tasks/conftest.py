"""Tokenizers of the tests of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from tests.tokenizers.conftest import BERT_WORDS, Flags


@pytest.fixture
def bert_vocab_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocab.txt of a small BERT."""
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in BERT_WORDS), encoding="utf-8")
    return path


@pytest.fixture
def wordpiece(bert_vocab_file: Path) -> Tokenizer:
    """The tokenizer of that vocabulary, for small letters."""
    return build_tokenizer(Flags("BertWordPieceLowerCase", vocab_file=str(bert_vocab_file)))
