from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from megatron_ds.tokenizers.plain import NullTokenizer
from tests.tokenizers.conftest import Flags, encode_all
from tests.tokenizers.test_tokenizers import TEXTS


@pytest.fixture(params=["bpe", "sentence_piece", "bert", "bytes", "null"])
def tokenizer(
    request: pytest.FixtureRequest, bpe_folder: Path, sentence_piece_model: Path, bert_vocab: Path
) -> Tokenizer:
    flags = {
        "bpe": Flags("HFTokenizer", tokenizer_name_or_path=str(bpe_folder)),
        "sentence_piece": Flags("SentencePieceTokenizer", tokenizer_model=str(sentence_piece_model)),
        "bert": Flags("BertWordPieceCase", vocab_file=str(bert_vocab)),
        "bytes": Flags("ByteTokenizer"),
        "null": Flags("NullTokenizer"),
    }[request.param]
    return build_tokenizer(flags, vocab_size=100)


@pytest.mark.parametrize("allow_special", [False, True])
def test_encode_flat_equals_encode_of_each(tokenizer: Tokenizer, allow_special: bool) -> None:
    texts = ["1 2", "", "3"] if isinstance(tokenizer, NullTokenizer) else TEXTS
    flat = tokenizer.encode_flat(texts, allow_special=allow_special)
    expected = [tokenizer.encode(text, allow_special=allow_special) for text in texts]
    assert encode_all(tokenizer, texts, allow_special=allow_special) == expected
    assert flat.lengths.dtype == np.int64
    assert flat.ids.dtype.kind in "iu"


@pytest.mark.parametrize("texts", [[], [""]])
def test_encode_flat_of_no_text_is_empty(tokenizer: Tokenizer, texts: list[str]) -> None:
    flat = tokenizer.encode_flat(texts)
    assert (flat.ids.shape, flat.lengths.tolist()) == ((0,), [0] * len(texts))
