from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from megatron_ds.errors import ConfigError
from megatron_ds.tokenizers import build_tokenizer
from megatron_ds.tokenizers.bert_tokens import bert_tokens
from tests.tokenizers.conftest import BERT_WORDS, Flags, byte_level_bpe

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def saved(tokenizer: tokenizers.Tokenizer, folder: Path) -> Flags:
    tokenizer.save(str(folder / "tokenizer.json"))
    return Flags("HFTokenizer", tokenizer_name_or_path=str(folder))


def test_bert_tokens_of_wordpiece_have_ids_and_pieces(bert_vocab: Path) -> None:
    tokenizer = build_tokenizer(Flags("BertWordPieceLowerCase", vocab_file=str(bert_vocab), vocab_extra_ids=2))
    known = bert_tokens(tokenizer)
    assert (known.pad_id, known.cls_id, known.sep_id, known.mask_id) == (0, 2, 3, 4)
    # [PAD] to [MASK], then [BOS], [EOS] and two sentinels.
    count = len(BERT_WORDS)
    assert known.special_ids == (0, 1, 2, 3, 4, count, count + 1, count + 2, count + 3)
    assert known.vocab_size == tokenizer.vocab_size == len(BERT_WORDS) + 4
    assert known.continues_word is not None
    pieces = np.flatnonzero(known.continues_word).tolist()
    assert "##ing" in BERT_WORDS
    assert pieces == [number for number, word in enumerate(BERT_WORDS) if word.startswith("##")]


def test_bert_tokens_of_a_wordpiece_file_are_the_same(bert_vocab: Path, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: number for number, word in enumerate(BERT_WORDS)}, unk_token="[UNK]")
    )
    known = bert_tokens(build_tokenizer(saved(backend, tmp_path)))
    ours = bert_tokens(build_tokenizer(Flags("BertWordPieceCase", vocab_file=str(bert_vocab))))
    assert (known.pad_id, known.cls_id, known.sep_id, known.mask_id) == (0, 2, 3, 4)
    # In that file no token is said to be special.
    assert known.special_ids == (0, 2, 3, 4)
    assert known.continues_word is not None and ours.continues_word is not None
    assert (known.continues_word == ours.continues_word[: len(BERT_WORDS)]).all()


def test_bert_tokens_of_byte_level_bpe_mark_no_pieces(tmp_path: Path) -> None:
    known = bert_tokens(build_tokenizer(saved(byte_level_bpe(SPECIAL), tmp_path)))
    assert (known.pad_id, known.cls_id, known.sep_id, known.mask_id) == (0, 2, 3, 4)
    assert known.continues_word is None


@pytest.mark.parametrize("missing", ["[CLS]", "[SEP]", "[MASK]", "[PAD]"])
def test_bert_tokens_without_one_of_them_names_it(tmp_path: Path, missing: str) -> None:
    tokenizer = byte_level_bpe([name for name in SPECIAL if name != missing])
    with pytest.raises(ConfigError, match="the tokenizer has no ") as caught:
        bert_tokens(build_tokenizer(saved(tokenizer, tmp_path)))
    assert f"has no {missing}: " in str(caught.value)


def test_bert_tokens_of_bytes_names_all_four() -> None:
    with pytest.raises(ConfigError) as caught:
        bert_tokens(build_tokenizer(Flags("ByteTokenizer")))
    assert r"has no [CLS] and no [SEP] and no [MASK] and no [PAD]: " in str(caught.value)
