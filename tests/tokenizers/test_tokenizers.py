from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from megatron_ds.errors import ConfigError, DataError
from megatron_ds.tokenizers import build_tokenizer
from tests.tokenizers.conftest import Flags, byte_level_bpe, encode_all

TEXTS = [
    "plain",
    "",
    "naïve café ☕",
    "日本語\r\n\ttab",
    "nul \x00 byte",
    "e\u0301 is not \u00e9",
    "a <|endoftext|> inside",
]


def hugging_face(path: Path) -> Flags:
    return Flags("HFTokenizer", tokenizer_name_or_path=str(path))


def test_hugging_face_any_text_decodes_to_itself(bpe_folder: Path) -> None:
    tokenizer = build_tokenizer(hugging_face(bpe_folder))
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS
    assert encode_all(tokenizer, TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_hugging_face_added_tokens_count_in_vocab_size(bpe_folder: Path) -> None:
    """T4: rows for the added tokens too."""
    tokenizer = build_tokenizer(hugging_face(bpe_folder))
    without = LibraryTokenizer.from_file(str(bpe_folder / "tokenizer.json")).get_vocab_size(with_added_tokens=False)
    assert tokenizer.vocab_size == without + 3
    assert tokenizer.encode("<two>") == [without + 1]


def test_hugging_face_gap_in_ids_counts_in_vocab_size(tmp_path: Path) -> None:
    content = json.loads(byte_level_bpe([]).to_str())
    largest = max(content["model"]["vocab"], key=content["model"]["vocab"].get)
    content["model"]["vocab"][largest] = 999
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert build_tokenizer(hugging_face(file)).vocab_size == 1000


def test_hugging_face_eod_id_zero_is_an_id(bpe_folder: Path) -> None:
    """T6: 0 is not "no token"."""
    assert build_tokenizer(hugging_face(bpe_folder)).eod_id == 0


def test_hugging_face_special_token_in_text_is_plain_text(bpe_folder: Path) -> None:
    tokenizer = build_tokenizer(hugging_face(bpe_folder))
    ids = tokenizer.encode("a<|endoftext|>b<mark>")
    assert 0 not in ids
    assert tokenizer.vocab_size - 1 not in ids
    assert tokenizer.decode([0]) == "<|endoftext|>"


@pytest.mark.parametrize("eos", ["<|endoftext|>", "</s>", "<eos>"])
def test_hugging_face_without_config_finds_usual_eos(tmp_path: Path, eos: str) -> None:
    file = tmp_path / "tokenizer.json"
    byte_level_bpe(["<pad>", eos]).save(str(file))
    assert build_tokenizer(hugging_face(file)).eod_id == 1


def test_hugging_face_without_eos_has_no_eod(tmp_path: Path) -> None:
    """T6: no other model's token is assumed, and an ordinary token named </s> is not one."""
    tokenizer = byte_level_bpe(["<pad>"])
    tokenizer.add_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert build_tokenizer(hugging_face(tmp_path)).eod_id is None


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_hugging_face_eos_from_config_object(tmp_path: Path, name: str) -> None:
    byte_level_bpe(["<pad>", "<stop>"]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(json.dumps({"eos_token": {"content": "<stop>", "special": True}}))
    assert build_tokenizer(hugging_face(tmp_path)).eod_id == 1


def test_hugging_face_eos_not_in_vocabulary_refused(tmp_path: Path) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<other>"}))
    with pytest.raises(ConfigError, match="'<other>' is not in the vocabulary"):
        build_tokenizer(hugging_face(tmp_path))


def test_hugging_face_truncation_in_file_is_ignored(tmp_path: Path) -> None:
    tokenizer = byte_level_bpe([])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = build_tokenizer(hugging_face(tmp_path))
    assert ours.decode(ours.encode("q" * 50)) == "q" * 50
    assert len(ours.encode("q")) == 1


def test_hugging_face_tokenizer_json_imports_neither_transformers_nor_torch(bpe_folder: Path) -> None:
    code = (
        "import sys; from megatron_ds.tokenizers import build_tokenizer; from tests.tokenizers.conftest import Flags; "
        "build_tokenizer(Flags('HFTokenizer', tokenizer_name_or_path=sys.argv[1])).encode('a'); "
        "print({'transformers', 'torch', 'pydantic'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(bpe_folder)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_hugging_face_folder_without_tokenizer_json_goes_through_transformers(gpt2_files: tuple[Path, Path]) -> None:
    vocab, merges = gpt2_files
    (vocab.parent / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    tokenizer = build_tokenizer(hugging_face(vocab.parent))
    direct = build_tokenizer(Flags("GPT2BPETokenizer", vocab_file=str(vocab), merge_file=str(merges)))
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (direct.vocab_size, direct.eod_id)
    assert encode_all(tokenizer, TEXTS) == encode_all(direct, TEXTS)


def test_hugging_face_folder_without_a_tokenizer_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer found for"):
        build_tokenizer(hugging_face(tmp_path))


def test_gpt2_bpe_equals_the_same_tokenizer_json(gpt2_files: tuple[Path, Path]) -> None:
    vocab, merges = gpt2_files
    tokenizer = build_tokenizer(Flags("GPT2BPETokenizer", vocab_file=str(vocab), merge_file=str(merges)))
    reference = byte_level_bpe(["<|endoftext|>"])
    assert tokenizer.eod_id == 0
    assert tokenizer.vocab_size == reference.get_vocab_size()
    plain = [text for text in TEXTS if "<|" not in text]
    assert [tokenizer.encode(text) for text in plain] == [reference.encode(text).ids for text in plain]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


@pytest.mark.parametrize("name", ["SentencePieceTokenizer", "GPTSentencePieceTokenizer"])
def test_sentence_piece_encodes_and_knows_its_eod(sentence_piece_model: Path, name: str) -> None:
    tokenizer = build_tokenizer(Flags(name, tokenizer_model=str(sentence_piece_model)))
    assert tokenizer.eod_id == 2
    ids = tokenizer.encode("quick fox</s>")
    assert 2 not in ids
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode(tokenizer.encode("quick fox")) == "quick fox"
    assert encode_all(tokenizer, ["the", "fox"]) == [tokenizer.encode("the"), tokenizer.encode("fox")]


def test_bytes_decode_to_the_text() -> None:
    tokenizer = build_tokenizer(Flags("ByteTokenizer"))
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (257, 256)
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS
    assert tokenizer.decode([97, 256, 98]) == "a<|endoftext|>b"


def test_null_tokenizer_reads_numbers_below_its_vocab_size() -> None:
    tokenizer = build_tokenizer(Flags("NullTokenizer"), vocab_size=10)
    assert tokenizer.encode("0 9\n3") == [0, 9, 3]
    assert tokenizer.encode("0" * 5000 + "7") == [7]
    assert tokenizer.decode([0, 9, 3]) == "0 9 3"
    assert tokenizer.eod_id is None
    for number in ("10", "9" * 5000):
        with pytest.raises(DataError, match=rf"the text has id {number[:40]}, outside of the vocabulary of 10 ids"):
            tokenizer.encode(f"3 {number}")
    for word in ("-1", "+5", "a", "1_0", "\u0663", "1.0", "\u00b2"):
        with pytest.raises(DataError, match=re.escape(f"the text has {word!r} where an id belongs")):
            tokenizer.encode(f"3 {word}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Flags(), "no tokenizer type is given"),
        (Flags("Wordpiece"), "unknown tokenizer type 'Wordpiece'"),
        (Flags("HFTokenizer"), "needs --tokenizer-name-or-path"),
        (Flags("HFTokenizer", tokenizer_name_or_path="./nowhere"), r"tokenizer not found: \./nowhere"),
        (Flags("GPT2BPETokenizer"), "needs --vocab-file"),
        (Flags("GPT2BPETokenizer", vocab_file="no/vocab.json", merge_file="x"), "file not found: no/vocab.json"),
        (Flags("SentencePieceTokenizer"), "needs --tokenizer-model"),
        (Flags("SentencePieceTokenizer", tokenizer_model="no.model"), "file not found: no.model"),
        (Flags("NullTokenizer"), "--vocab-size is not given"),
    ],
)
def test_build_missing_option_or_file_named(flags: Flags, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_tokenizer(flags)


def test_build_file_of_something_else_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text('{"not": "a tokenizer"}')
    for flags in (
        hugging_face(tmp_path),
        Flags("SentencePieceTokenizer", tokenizer_model=str(file)),
        Flags("GPT2BPETokenizer", vocab_file=str(file), merge_file=str(file)),
    ):
        with pytest.raises(ConfigError, match=r"(is not a|are not the two files)"):
            build_tokenizer(flags)
