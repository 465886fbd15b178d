"""The proof that gigatoken gives the ids of the `tokenizers` library, and what happens where it would not.

A byte-level BPE first cuts a text into words, then merges bytes within each word. Merging is the same algorithm on the
same table; where words are cut depends on what each library takes for a letter, a digit or white space. So one
vocabulary here merges every character with each kind of neighbour: a cut at another place changes the ids.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from megatron_ds.errors import ConfigError
from megatron_ds.tokenizers import build_tokenizer, gigatoken_backend, with_backend
from megatron_ds.tokenizers.fast import FastTokenizer
from megatron_ds.tokenizers.gigatoken_backend import OTHER_EDITION, GigatokenTokenizer
from megatron_ds.tokenizers.word_rules import ONE_DIGIT, THREE_DIGITS
from tests.tokenizers.conftest import Flags, byte_level_bpe, encode_all

SOURCES = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
OTHER_LETTERS = "日本語 한국어 русский текст العربية हिन्दी ελληνικά ½Ⅷ ١٢ 👩‍👩‍👧🇩🇪"


def gpt2_rule(add_prefix_space: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)


def pattern_rule(pattern: str) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


RULES = {
    "gpt2": gpt2_rule(),
    "gpt2_prefix": gpt2_rule(add_prefix_space=True),
    "llama3": pattern_rule(THREE_DIGITS),
    "qwen2": pattern_rule(ONE_DIGIT),
}


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte, by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


def showing_cuts(rule: Any) -> FastTokenizer:
    """A tokenizer that merges a neighbour of each kind with the first and the last byte of any character."""
    letters = byte_letters()
    merges: list[tuple[str, str]] = []
    for neighbour in (letters[ord(each)] for each in "a1! \n'"):
        merges += [(neighbour, letters[byte]) for byte in range(0xC2, 0xF5)]
        merges += [(letters[byte], neighbour) for byte in range(0x80, 0xC0)]
    merges += [("'", "s"), ("a", "a"), ("1", "1"), ("!", "!")]
    pieces = dict.fromkeys([*letters, *(first + second for first, second in merges)])
    backend = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = rule
    backend.decoder = decoders.ByteLevel()
    return FastTokenizer(backend, None)


def trained(rule: Any, vocab_size: int = 1500) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = rule
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SOURCES, *[OTHER_LETTERS] * 20], trainer)
    return tokenizer


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    content = json.loads(tokenizer.to_str())
    change(content)
    return Tokenizer.from_str(json.dumps(content))


def characters() -> Iterator[int]:
    """Every character of the planes that Unicode uses, and samples of the others."""
    yield from range(0xD800)
    yield from range(0xE000, 0x34000)
    yield from range(0x34000, 0x110000, 61)
    yield from range(0xE0000, 0xE0200)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["gpt2", "llama3", "qwen2"])
def test_gigatoken_cuts_words_at_every_character_as_tokenizers_does(rule: str) -> None:
    import gigatoken

    fast = showing_cuts(RULES[rule])
    ours = GigatokenTokenizer(fast)
    theirs = gigatoken.Tokenizer.from_json(fast.to_json_without_special_tokens())
    codes = list(characters())
    differing = set()
    for start in range(0, len(codes), 20_000):
        part = codes[start : start + 20_000]
        texts = ["a{0}a 1{0}1!{0}! {0}'s{0}{0}\n{0} {0}{0}".format(chr(code)) for code in part]
        expected = encode_all(fast, texts)
        assert encode_all(ours, texts) == expected
        differing |= {
            code for code, text, ids in zip(part, texts, expected, strict=True) if theirs.encode(text).tolist() != ids
        }
    # Not one text more than needed goes through the slower library.
    assert differing == {code for first, last in OTHER_EDITION for code in range(first, last + 1)}


WORDS = """
's 't 're 've 'LL ' ’s ſ 'ſ don't a Hello é ß İ ǅ 日本 한 ا हि ० ١٢ ² ½ Ⅷ ① 𝟘 12345 0 7 3.14 _ __init__ ! !!! ... -> ==
{ } 😀 👩‍👩‍👧 🇩🇪 🏻 <|endoftext|> </s> Ġ Ċ ▁ <0x0A>
"""
PIECES = [
    *WORDS.split(),
    *(" ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x00", "\x01", "\x1f", "\x7f", "\x85", "\xa0", "\u1680"),
    *("\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "\u200d", "\ufeff", "\u180e", " the", " 42", "x" * 40),
    *("\n" * 20, "ab" * 100, " " * 37, "e\u0301", "\u0301", "\u212a", "\U000e0041", "\U00032559", "\u0c5c", "\ufffd"),
    *("\U0010ffff", "\ufdd0"),
]


def random_text(generator: random.Random) -> str:
    """Pieces of all sorts, characters of all sorts, real text, or one piece over and over."""
    kind = generator.random()
    if kind < 0.5:
        return "".join(generator.choices(PIECES, k=generator.randrange(30)))
    if kind < 0.7:
        tops = generator.choices((0x80, 0x3000, 0xD800, 0x110000), k=generator.randrange(40))
        codes = [generator.randrange(top) for top in tops]
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    if kind < 0.85:
        source = generator.choice(SOURCES)
        start = generator.randrange(len(source))
        return source[start : start + generator.randrange(200)]
    return generator.choice(PIECES) * generator.randrange(1, 200) + generator.choice(PIECES)


def _no_change(content: dict[str, Any]) -> None:
    pass


def _ignore_merges(content: dict[str, Any]) -> None:
    """Llama 3's: a word that is an entry is one token, whatever the merges say."""
    content["model"]["ignore_merges"] = True
    del content["model"]["merges"][-500:]


def _shuffle_merges(content: dict[str, Any]) -> None:
    random.Random(1).shuffle(content["model"]["merges"])


def _leave_gaps(content: dict[str, Any]) -> None:
    content["added_tokens"] = []
    content["model"]["vocab"] = {piece: 40 * number for piece, number in content["model"]["vocab"].items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("change", [_no_change, _ignore_merges, _shuffle_merges, _leave_gaps])
def test_gigatoken_random_texts_have_the_ids_of_tokenizers(rule: str, change: Callable[[dict[str, Any]], None]) -> None:
    fast = FastTokenizer(changed(trained(RULES[rule]), change), None)
    ours = GigatokenTokenizer(fast)
    generator = random.Random(f"{rule} {change.__name__}")
    texts = [*SOURCES, *(random_text(generator) for _ in range(2000))]
    assert encode_all(ours, texts) == encode_all(fast, texts)
    for text in texts[-50:]:
        assert ours.encode(text) == fast.encode(text)
        if rule != "gpt2_prefix" and change is not _leave_gaps:
            assert ours.decode(ours.encode(text)) == text


def test_gigatoken_is_the_same_tokenizer_in_all_else(bpe_folder: Path) -> None:
    _change_nothing_but_added(bpe_folder)
    fast = build_tokenizer(Flags("HFTokenizer", tokenizer_name_or_path=str(bpe_folder), vocab_extra_ids=2))
    ours, note = with_backend(fast, "gigatoken")
    assert isinstance(ours, GigatokenTokenizer)
    assert note == "gigatoken encodes"
    assert (ours.vocab_size, ours.eod_id, ours.sentinel_ids) == (fast.vocab_size, fast.eod_id, fast.sentinel_ids)
    assert ours.fingerprint == fast.fingerprint
    text = "a<|endoftext|>b<extra_id_1>"
    assert ours.encode(text) == fast.encode(text)
    assert ours.encode(text, allow_special=True) == fast.encode(text, allow_special=True)
    assert encode_all(ours, [text], allow_special=True) == [fast.encode(text, allow_special=True)]
    assert encode_all(ours, []) == [[]]


def _change_nothing_but_added(folder: Path) -> None:
    """Leaves out the added tokens that are not special."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["special"]]
    file.write_text(json.dumps(content))


def test_gigatoken_that_starts_anew_gives_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = FastTokenizer(trained(gpt2_rule()), None)
    starts = []
    start_anew = gigatoken_backend._Encoder._start_anew
    monkeypatch.setattr(
        gigatoken_backend._Encoder, "_start_anew", lambda encoder: (starts.append(1), start_anew(encoder))
    )
    monkeypatch.setattr(gigatoken_backend, "MOST_GROWTH_BYTES", 0)
    ours = GigatokenTokenizer(fast)
    for _ in range(3):
        assert encode_all(ours, SOURCES) == encode_all(fast, SOURCES)
    assert len(starts) > 1


def test_gigatoken_counts_characters_where_memory_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gigatoken_backend, "_resident_bytes", lambda: None)
    monkeypatch.setattr(gigatoken_backend, "MOST_TEXT_CHARACTERS", 10)
    encoder = gigatoken_backend._Encoder(byte_level_bpe([]).to_str())
    first = encoder._backend
    encoder.encode("nine char")
    encoder.forget_if_grown()
    assert encoder._backend is first
    encoder.encode("x")
    encoder.forget_if_grown()
    assert encoder._backend is not first


def _normaliser(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "NFC"}


def _dropout(content: dict[str, Any]) -> None:
    content["model"]["dropout"] = 0.1


def _no_rule(content: dict[str, Any]) -> None:
    content["pre_tokenizer"]["use_regex"] = False


def _other_pattern(content: dict[str, Any]) -> None:
    content["pre_tokenizer"] = json.loads(pattern_rule(r"\s+|\S+").__getstate__())


def _ordinary_added(content: dict[str, Any]) -> None:
    content["added_tokens"].append({**content["added_tokens"][0], "content": "<x>", "special": False, "id": 1500})


def _without_a_byte(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["\ufdd0"] = content["model"]["vocab"].pop("Ā")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_normaliser, "there is a normaliser, NFC"),
        (_dropout, "the model has a dropout"),
        (_no_rule, "its rule for cutting text into words"),
        (_other_pattern, "its rule for cutting text into words"),
        (_ordinary_added, "there are added tokens that documents may have, such as '<x>'"),
        (_without_a_byte, "not every byte has a token"),
    ],
)
def test_gigatoken_for_another_kind_is_refused_by_name_and_not_taken_by_itself(
    change: Callable[[dict[str, Any]], None], why: str
) -> None:
    fast = FastTokenizer(changed(trained(gpt2_rule()), change), None)
    with pytest.raises(ConfigError, match=f"gigatoken can't encode with this tokenizer: {why}"):
        with_backend(fast, "gigatoken")
    chosen, note = with_backend(fast, "auto")
    assert chosen is fast
    assert note.startswith(f"tokenizers encodes; gigatoken can't encode with this tokenizer: {why}")


def test_gigatoken_for_other_models_is_refused_by_name(sentence_piece_model: Path, bert_vocab: Path) -> None:
    piece = build_tokenizer(Flags("SentencePieceTokenizer", tokenizer_model=str(sentence_piece_model)))
    with pytest.raises(ConfigError, match="SentencePieceTokenizer is not a byte-level BPE"):
        with_backend(piece, "gigatoken")
    assert with_backend(piece, "auto") == (piece, "")
    bert = build_tokenizer(Flags("BertWordPieceCase", vocab_file=str(bert_vocab)))
    with pytest.raises(ConfigError, match="the model is WordPiece"):
        with_backend(bert, "gigatoken")


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        ({"tokenizers": "0.23.3"}, "it is not installed"),
        ({"tokenizers": "0.23.3", "gigatoken": "0.11.0"}, "version 0.11.0 was not compared with tokenizers 0.23.3"),
        ({"tokenizers": "0.24.0", "gigatoken": "0.10.0"}, "version 0.10.0 was not compared with tokenizers 0.24.0"),
    ],
)
def test_gigatoken_missing_or_of_another_version_is_told(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], why: str
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    fast = FastTokenizer(byte_level_bpe([]), None)
    with pytest.raises(ConfigError, match=why):
        with_backend(fast, "gigatoken")
    chosen, note = with_backend(fast, "auto")
    assert chosen is fast
    assert why in note
    # Nothing is said where gigatoken would be of no use.
    normalised = byte_level_bpe([])
    normalised.normalizer = normalizers.NFC()
    assert with_backend(FastTokenizer(normalised, None), "auto")[1] == ""


def test_gigatoken_with_other_ids_on_this_machine_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = FastTokenizer(byte_level_bpe([]), None)
    monkeypatch.setattr(FastTokenizer, "encode", lambda *_, **__: [0])
    chosen, note = with_backend(fast, "auto")
    assert chosen is fast
    assert "gives other ids than tokenizers on this machine" in note


def test_gigatoken_that_can_not_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    fast = FastTokenizer(byte_level_bpe([]), None)
    with pytest.raises(ConfigError, match="it can't be imported"):
        with_backend(fast, "gigatoken")
    assert with_backend(fast, "auto")[0] is fast


def test_gigatoken_that_refuses_a_tokenizer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = FastTokenizer(byte_level_bpe([]), None)
    monkeypatch.setattr(FastTokenizer, "to_json_without_special_tokens", lambda _: "{}")
    with pytest.raises(ConfigError, match="gigatoken says"):
        with_backend(fast, "gigatoken")
    assert with_backend(fast, "auto")[0] is fast


def test_backend_tokenizers_is_the_library_itself() -> None:
    fast = FastTokenizer(byte_level_bpe([]), None)
    assert with_backend(fast, "tokenizers") == (fast, "")
