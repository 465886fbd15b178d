"""Special tokens and T5's sentinels, in documents and in what the program writes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from megatron_ds.errors import ConfigError
from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from tests.tokenizers.conftest import BERT_WORDS, CORPUS, Flags, byte_level_bpe

Build = Callable[[Path, int], Tokenizer]


def _byte_level(folder: Path, extra_ids: int) -> Tokenizer:
    tokenizer = byte_level_bpe(["<|endoftext|>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(folder), vocab_extra_ids=extra_ids))


def _gpt2(folder: Path, extra_ids: int) -> Tokenizer:
    byte_level_bpe(["<|endoftext|>"]).model.save(str(folder))
    files = {"vocab_file": str(folder / "vocab.json"), "merge_file": str(folder / "merges.txt")}
    return build_tokenizer(Flags("GPT2BPETokenizer", **files, vocab_extra_ids=extra_ids))


def _bert(folder: Path, extra_ids: int) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join(BERT_WORDS), encoding="utf-8")
    return build_tokenizer(
        Flags("BertWordPieceLowerCase", vocab_file=str(folder / "vocab.txt"), vocab_extra_ids=extra_ids)
    )


def _piece_model(folder: Path, extra_ids: int, **training: object) -> Tokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS, "<extra_id_0>. Hello </s>"] * 5),
        model_writer=model,
        vocab_size=70,
        minloglevel=2,
        hard_vocab_limit=False,
        **training,
    )
    (folder / "tiny.model").write_bytes(model.getvalue())
    return build_tokenizer(
        Flags("SentencePieceTokenizer", tokenizer_model=str(folder / "tiny.model"), vocab_extra_ids=extra_ids)
    )


def _keeping_spaces(folder: Path, extra_ids: int) -> Tokenizer:
    return _piece_model(folder, extra_ids, remove_extra_whitespaces=False)


def _unigram(folder: Path, extra_ids: int) -> Tokenizer:
    """T5's kind: the special tokens are pieces of the model, with the best score of all."""
    letters = sorted(set("".join(CORPUS)) | set("<>/_.| ehlosdaxtri0Hb") - {" "})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("▁", -2.0), *((letter, -3.0) for letter in letters)]
    tokenizer = LibraryTokenizer(models.Unigram([*pieces, ("<extra_id_1>", 0.0), ("<extra_id_0>", 0.0)], 2, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(folder), vocab_extra_ids=extra_ids))


def _llama2(folder: Path, extra_ids: int) -> Tokenizer:
    """Llama 2's kind: a normaliser puts a space in front of each stretch of text."""
    letters = sorted(set("▁<>/_.|ehlosdaxtri0Hb"))
    vocab = {"<unk>": 0, "</s>": 1} | {letter: number + 2 for number, letter in enumerate(letters)}
    tokenizer = LibraryTokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(folder), vocab_extra_ids=extra_ids))


WITH_SENTINELS = [_byte_level, _gpt2, _bert, _piece_model, _keeping_spaces, _unigram, _llama2]


@pytest.mark.parametrize("build", WITH_SENTINELS)
def test_sentinels_have_one_unique_id_each(tmp_path: Path, build: Build) -> None:
    """T8."""
    plain, tokenizer = build(tmp_path, 0), build(tmp_path, 100)
    assert plain.sentinel_ids == ()
    ids = tokenizer.sentinel_ids
    assert len(set(ids)) == len(ids) == 100
    for number in (0, 1, 99):
        assert tokenizer.encode(f"<extra_id_{number}>", allow_special=True) == [ids[number]]
    assert max(ids) == tokenizer.vocab_size - 1
    assert tokenizer.decode([ids[7]]) == "<extra_id_7>"
    assert tokenizer.fingerprint != plain.fingerprint


@pytest.mark.parametrize("build", WITH_SENTINELS)
def test_sentinels_leave_other_ids_as_they_were(tmp_path: Path, build: Build) -> None:
    plain, tokenizer = build(tmp_path, 0), build(tmp_path, 3)
    for text in [*CORPUS, "<extra_id_0>. Hello", "a</s>b"]:
        assert tokenizer.encode(text) == plain.encode(text)
        assert not set(tokenizer.sentinel_ids) & set(tokenizer.encode(text))


@pytest.mark.parametrize("build", [_byte_level, _gpt2, _piece_model, _keeping_spaces, _llama2])
def test_sentinels_come_after_the_vocabulary_in_order(tmp_path: Path, build: Build) -> None:
    size = build(tmp_path, 0).vocab_size
    assert build(tmp_path, 3).sentinel_ids == (size, size + 1, size + 2)


def test_sentinels_of_bert_come_after_bos_and_eos_as_in_megatron(tmp_path: Path) -> None:
    size = len(BERT_WORDS)
    tokenizer = _bert(tmp_path, 2)
    assert tokenizer.encode("[BOS][EOS]<extra_id_0><extra_id_1>", allow_special=True) == list(range(size, size + 4))
    assert tokenizer.sentinel_ids == (size + 2, size + 3)
    assert tokenizer.eod_id == size + 1


def test_sentinels_of_the_vocabulary_keep_their_ids(tmp_path: Path) -> None:
    size = _unigram(tmp_path, 0).vocab_size
    assert _unigram(tmp_path, 3).sentinel_ids == (size - 1, size - 2, size)


@pytest.mark.parametrize("build", WITH_SENTINELS)
def test_sentinels_are_not_followed_by_a_space_that_is_not_there(tmp_path: Path, build: Build) -> None:
    """T8."""
    tokenizer = build(tmp_path, 2)
    first, second = tokenizer.sentinel_ids
    ids = tokenizer.encode("<extra_id_0>. Hello<extra_id_1> b", allow_special=True)
    assert (ids.count(first), ids.count(second), ids[0]) == (1, 1, first)
    # A stretch starts as it does in the middle of a text.
    assert tokenizer.encode("a. Hello")[-len(ids[1 : ids.index(second)]) :] == ids[1 : ids.index(second)]
    end = ids[ids.index(second) + 1 :]
    assert tokenizer.encode("a b")[-len(end) :] == end
    assert len(end) < len(tokenizer.encode("a b"))


@pytest.mark.parametrize("build", [_byte_level, _gpt2, _piece_model, _keeping_spaces])
def test_sentinels_decode_to_the_text(tmp_path: Path, build: Build) -> None:
    tokenizer = build(tmp_path, 2)
    text = "the<extra_id_0>. the fox<extra_id_1> jumps"
    assert tokenizer.decode(tokenizer.encode(text, allow_special=True)) == text


@pytest.mark.parametrize("build", [_byte_level, _gpt2, _bert, _piece_model, _unigram, _llama2])
def test_special_token_in_a_document_is_plain_text_unless_allowed(tmp_path: Path, build: Build) -> None:
    tokenizer = build(tmp_path, 0)
    marks = {_gpt2: "<|endoftext|>", _bert: "[SEP]"}
    mark = marks.get(build, "</s>")
    (mark_id,) = tokenizer.encode(mark, allow_special=True)
    texts = [mark, f"the {mark} fox", f"the{mark}{mark}"]
    assert [tokenizer.encode(text).count(mark_id) for text in texts] == [0, 0, 0]
    assert mark_id not in tokenizer.encode_flat(texts).ids
    assert [tokenizer.encode(text, allow_special=True).count(mark_id) for text in texts] == [1, 1, 2]
    flat = tokenizer.encode_flat(texts, allow_special=True)
    assert flat.ids.tolist() == [number for text in texts for number in tokenizer.encode(text, allow_special=True)]


def test_special_token_of_the_byte_tokenizer_is_plain_text_unless_allowed() -> None:
    tokenizer = build_tokenizer(Flags("ByteTokenizer"))
    text = "a<|endoftext|>é"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.encode(text, allow_special=True) == [97, 256, 0xC3, 0xA9]
    assert tokenizer.encode_flat([text, "", "b"], allow_special=True).ids.tolist() == [97, 256, 0xC3, 0xA9, 98]


def test_special_token_of_a_unigram_model_keeps_the_library_ids_elsewhere(tmp_path: Path) -> None:
    """The piece that a document could forge is hidden; every other text is encoded as the library does."""
    tokenizer = _unigram(tmp_path, 0)
    library = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*CORPUS, "unknown Ω", " a  b "]:
        assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.decode([1]) == "</s>"


def test_special_word_of_a_word_model_is_unknown_in_a_document(tmp_path: Path) -> None:
    tokenizer = LibraryTokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(tmp_path)))
    assert (ours.encode("a </s> a"), ours.encode("a </s> a", allow_special=True)) == ([2, 0, 2], [2, 1, 2])


def test_added_token_that_is_not_special_is_matched_in_documents(bpe_folder: Path) -> None:
    tokenizer = build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(bpe_folder)))
    assert tokenizer.encode("<two>") == tokenizer.encode("<two>", allow_special=True) == [tokenizer.vocab_size - 2]


@pytest.mark.parametrize("kind", ["ByteTokenizer", "NullTokenizer"])
def test_sentinels_without_a_vocabulary_file_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} has no sentinels, and --vocab-extra-ids asks for 5"):
        build_tokenizer(Flags(kind, vocab_extra_ids=5), vocab_size=10)


def test_sentinels_without_room_refused(tmp_path: Path) -> None:
    LibraryTokenizer(models.BPE({"a": 0, "b": 1, "c": 3}, [])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="no room for sentinels after this vocabulary: its 3 tokens have ids up to 3"):
        build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(tmp_path), vocab_extra_ids=1))
