from __future__ import annotations

import random
import string
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

from megatron_ds.tokenizers import fast, long_texts
from megatron_ds.tokenizers.fast import FastTokenizer
from megatron_ds.tokenizers.long_texts import LongTextCutter
from megatron_ds.tokenizers.word_rules import ONE_DIGIT, THREE_DIGITS
from tests.tokenizers.conftest import byte_level_bpe

MIXED = [*"a é日本中。9!☕x\n\t_"]
MIXED += ["the", "  ", "'s", "'", "re", "I'LL", "123456", "==", "\r\n", "\u00a0", "e\u0301", "👩‍👧"]
RUNS = ["x", "ab", "the ", string.ascii_letters, "=", "=-", " ", " \n", "  \n=", "xyz'"]


def scanned_by(pattern: str | None) -> tokenizers.Tokenizer:
    """A byte-level BPE with the given pattern of words; None: GPT-2's."""
    tokenizer = byte_level_bpe(["<|endoftext|>"], vocab_size=400)
    if pattern is not None:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level]
        )
    tokenizer.encode_special_tokens = True
    return tokenizer


def random_texts(draw: random.Random, count: int) -> list[str]:
    mixed = ["".join(draw.choices(MIXED, k=draw.randint(100, 300))) for _ in range(count)]
    return mixed + ["".join(draw.choices(draw.choice(RUNS), k=draw.randint(100, 900))) for _ in range(count)]


@pytest.mark.parametrize("pattern", [None, THREE_DIGITS, ONE_DIGIT])
@pytest.mark.parametrize("piece_chars", [40, 128])
def test_cutter_pieces_have_the_ids_of_the_text(
    pattern: str | None, piece_chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", piece_chars)
    tokenizer = scanned_by(pattern)
    cutter = LongTextCutter(tokenizer)
    num_pieces = 0
    for text in random_texts(random.Random(piece_chars), 200):
        pieces = cutter.cut(text)
        assert "".join(pieces) == text
        num_pieces += len(pieces)
        ids = [number for piece in pieces for number in tokenizer.encode(piece, add_special_tokens=False).ids]
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    assert num_pieces > 1000


@pytest.mark.parametrize(
    "text", ["word " * 100, "x" * 500, "=" * 500, " " * 500, "日本中。" * 125, "def f(x):\n\treturn x\n" * 20]
)
def test_cutter_cuts_every_kind_of_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", 64)
    assert max(map(len, LongTextCutter(scanned_by(None)).cut(text))) <= 64


def test_cutter_short_text_is_one_piece() -> None:
    assert LongTextCutter(scanned_by(None)).cut("a b") == ["a b"]
    assert LongTextCutter(scanned_by(None)).cut("") == [""]


def unsupported() -> dict[str, tokenizers.Tokenizer]:
    """Tokenizers in which a word depends on more than a cut keeps."""
    prefixed, other, normalized = scanned_by(None), scanned_by(r"\w+|\W+"), scanned_by(None)
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    normalized.normalizer = normalizers.NFC()
    whole = scanned_by(None)
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {"prefix": prefixed, "pattern": other, "normalizer": normalized, "no words": whole}


@pytest.mark.parametrize("kind", unsupported())
def test_cutter_other_tokenizers_keep_texts_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", 10)
    assert LongTextCutter(unsupported()[kind]).cut("some words " * 10) == ["some words " * 10]


def test_cutter_text_with_an_added_token_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", 30)
    tokenizer = scanned_by(None)
    tokenizer.add_tokens(["two words"])
    cutter = LongTextCutter(tokenizer)
    assert cutter.cut("two words " * 10) == ["two words " * 10]
    assert len(cutter.cut("other words " * 10)) > 3
    assert len(cutter.cut("a <|endoftext|> as text " * 10)) > 3
    tokenizer.encode_special_tokens = False
    assert len(LongTextCutter(tokenizer).cut("a <|endoftext|> as an id " * 10)) == 1


def test_encode_flat_of_cut_texts_is_encode_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", 30)
    monkeypatch.setattr(fast, "GROUP_CHARS", 100)
    tokenizer = FastTokenizer(scanned_by(None), 0)
    texts = ["", *random_texts(random.Random(0), 30), "short", ""]
    flat = tokenizer.encode_flat(texts)
    expected = [tokenizer.encode(text) for text in texts]
    assert flat.lengths.tolist() == [len(ids) for ids in expected]
    assert flat.ids.tolist() == [number for ids in expected for number in ids]
    assert tokenizer.encode_flat([]).lengths.tolist() == []


@pytest.mark.parametrize("text", ["word " * 400_000, "x" * 2_000_000])
def test_encode_flat_of_a_long_line_needs_little_memory(text: str, tmp_path: Path) -> None:
    """D17. The library alone takes 150 bytes for each of these."""
    scanned_by(None).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text(text)
    code = """
import resource, sys
from pathlib import Path
from megatron_ds.tokenizers.hugging_face import load_hugging_face_tokenizer
tokenizer = load_hugging_face_tokenizer(sys.argv[1])
text = Path(sys.argv[1], "text").read_text()
tokenizer.encode_flat([text[:100_000]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(tokenizer.encode_flat([text]).ids)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((peak - before) * (1 if sys.platform == "darwin" else 1024) / len(text))
"""
    output = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    # The ids themselves, twice, are up to 16 bytes for each byte.
    assert float(output.stdout) < 50
