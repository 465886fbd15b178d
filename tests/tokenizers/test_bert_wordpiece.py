from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron_ds.errors import ConfigError
from megatron_ds.tokenizers import build_tokenizer
from megatron_ds.tokenizers.bert_wordpiece import BertWordPieceTokenizer
from tests.tokenizers.conftest import BERT_WORDS, Flags

TEXTS = [
    "the fox jumps!",
    "The FOX jumping",
    "café cafe\u0301 CAFÉ",
    "日本 and 日本語x",
    "nul\x00 tab\t\u00a0new\nline \u200b \ufeff",
    "x" * 101,
    "ǅ İ ß ﬁ",
    "",
    " ",
    "[ MASK ]",
]


def build(vocab: Path, kind: str = "BertWordPieceLowerCase") -> BertWordPieceTokenizer:
    tokenizer = build_tokenizer(Flags(kind, vocab_file=str(vocab)))
    assert isinstance(tokenizer, BertWordPieceTokenizer)
    return tokenizer


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_bert_wordpiece_ids_are_those_of_transformers(bert_vocab: Path, kind: str) -> None:
    from transformers import BertTokenizerFast

    is_lower = kind == "BertWordPieceLowerCase"
    theirs: Any = BertTokenizerFast(str(bert_vocab), do_lower_case=is_lower)
    ours = build(bert_vocab, kind)
    assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text, add_special_tokens=False) for text in TEXTS]
    for text in ("the [MASK] fox", "[CLS]a[SEP]", "[mask]"):
        assert ours.encode(text, allow_special=True) == theirs.encode(text, add_special_tokens=False)
    # The two kinds are two.
    assert (ours.encode("Fox") == ours.encode("fox")) == is_lower


def test_bert_wordpiece_special_ids_are_known(bert_vocab: Path) -> None:
    tokenizer = build(bert_vocab)
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 2, 3, 4)
    assert tokenizer.vocab_size == len(BERT_WORDS)


def test_bert_wordpiece_ends_documents_with_eos_if_there_is_one(bert_vocab: Path) -> None:
    """T6: [SEP] is not taken for it."""
    assert build(bert_vocab).eod_id is None
    bert_vocab.write_text("\n".join([*BERT_WORDS, "[EOS]"]))
    assert build(bert_vocab).eod_id == len(BERT_WORDS)


def test_bert_wordpiece_line_ends_are_not_part_of_words(bert_vocab: Path) -> None:
    expected = [build(bert_vocab).encode(text) for text in TEXTS]
    bert_vocab.write_bytes("\r\n".join(BERT_WORDS).encode())
    assert [build(bert_vocab).encode(text) for text in TEXTS] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"the\nfox\n", r"\[PAD\], .*\[MASK\] are missing"), (b"\xff", "it is not UTF-8"), (b"", r"\[PAD\]")],
)
def test_bert_wordpiece_other_file_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=f"vocab.txt is not the vocabulary of a BERT: {message}"):
        build(tmp_path / "vocab.txt")
