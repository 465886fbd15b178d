from __future__ import annotations

import random
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from megatron_ds.cli import merge_data
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.sentences import _PLAIN_SPACES, LANGUAGES, SentenceSplitter, find_language
from megatron_ds.errors import ConfigError
from tests.data.test_preprocess import preprocess_files, text_of, write_lines

TEXT = 'Dr. Smith came at 3 p.m. on Jan. 5th. "Is it good?" he asked.\n\nYes! The U.S. grew\nby 3.5 %. '
SENTENCES = ["Dr. Smith came at 3 p.m. on Jan. 5th.", '"Is it good?" he asked.', "Yes!", "The U.S. grew\nby 3.5 %."]


def documents_of(prefix: str) -> list[list[str]]:
    """The texts of the sequences of each document, encoded as bytes."""
    indexed = IndexedDataset(prefix)
    indexed.check_index()
    starts = indexed.document_index.tolist()
    texts = [text_of(indexed[number].tolist()) for number in range(len(indexed))]
    return [texts[start:end] for start, end in pairwise(starts)]


def test_splitter_cuts_at_sentences_and_not_at_abbreviations() -> None:
    assert SentenceSplitter("en").split(TEXT) == SENTENCES


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("german", ["Das hier wird z.B. geteilt.", "Am 3. Mai kam Dr. Müller.", "Was nun?"]),
        ("ru", ["Он родился в 1990 г. в Москве.", "Это А. С. Пушкин.", "Да!"]),
        ("spanish", ["El Sr. García llegó.", "¿Cómo está?", "¡Bien!"]),
        ("hi", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("arabic", ["هذه جملة.", "هل هذه جملة؟", "نعم."]),
    ],
)
def test_splitter_other_languages_have_their_own_rules(language: str, sentences: list[str]) -> None:
    assert SentenceSplitter(find_language(language)).split(" ".join(sentences)) == sentences


def test_splitter_text_without_spaces_between_sentences() -> None:
    assert SentenceSplitter(find_language("Chinese")).split("你好。今天天气很好！你去哪里？") == [
        "你好。",
        "今天天气很好！",
        "你去哪里？",
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_splitter_loses_nothing_of_any_text(language: str) -> None:
    alphabet = "aB1.!?。।؟ \n\t\r\u00a0\u2009\u2029\u3000\"'’“()é☕\u0301\0日Я𝒜-;:\ufeff"
    parts = [*alphabet, "A.", ". ", "\n\n", "\r\n", "Dr.", "e.g.", "J.\u00a0", "U.S.", "[1]", "г.", "\U0001f600."]
    draw = random.Random(language)
    for _ in range(300):
        text = "".join(draw.choices(parts, k=draw.randint(0, 30)))
        kept = SentenceSplitter(language, keep_newlines=True).split(text)
        assert "".join(kept) == ("" if text.isspace() else text)
        assert [sentence.strip() for sentence in kept] == SentenceSplitter(language).split(text)


def test_splitter_knows_every_white_space() -> None:
    spaces = {code for code in range(0x80, sys.maxunicode + 1) if chr(code).isspace()}
    assert set(_PLAIN_SPACES) == spaces


def test_splitter_keep_newlines_leaves_them_at_the_end_of_the_sentence_before() -> None:
    assert SentenceSplitter("en", keep_newlines=True).split("\n\n One.\n\nTwo. \n") == ["\n\n One.\n\n", "Two. \n"]


def test_find_language_takes_codes_and_names_in_any_case() -> None:
    assert [find_language(name) for name in ("en", "English", "GERMAN", "Slovene")] == ["en", "en", "de", "sl"]
    with pytest.raises(ConfigError, match=r"no rules for sentences in 'klingon'.*de \(german\).*en \(english\)"):
        find_language("klingon")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_preprocess_split_sentences_makes_documents_of_several_sequences(tmp_path: Path, workers: str) -> None:
    source = write_lines(tmp_path / "in.jsonl", [TEXT, "", " \n", "One.", TEXT])
    preprocess_files(source, tmp_path / "out", "--split-sentences", "--workers", workers)
    assert {path.stem for path in tmp_path.glob("out*")} == {"out_text_sentence"}
    assert documents_of(f"{tmp_path / 'out'}_text_sentence") == [SENTENCES, ["One."], SENTENCES]


def test_preprocess_split_sentences_eod_belongs_to_the_last_sentence(tmp_path: Path) -> None:
    """As in Megatron: no sequence of its own."""
    source = write_lines(tmp_path / "in.jsonl", ["One. Two.", "Three."])
    preprocess_files(source, tmp_path / "out", "--split-sentences", "--append-eod")
    end = "<|endoftext|>"
    assert documents_of(f"{tmp_path / 'out'}_text_sentence") == [["One.", f"Two.{end}"], [f"Three.{end}"]]


def test_preprocess_split_sentences_in_another_language_with_newlines(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["Hier z.B. eins.\nAm 3. Mai zwei.\n\nDrei."])
    preprocess_files(source, tmp_path / "out", "--split-sentences", "--lang", "german", "--keep-newlines")
    assert documents_of(f"{tmp_path / 'out'}_text_sentence") == [["Hier z.B. eins.\n", "Am 3. Mai zwei.\n\n", "Drei."]]


def test_preprocess_sentence_options_without_split_sentences_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["a"])
    with pytest.raises(ConfigError) as error:
        preprocess_files(source, tmp_path / "out", "--lang", "en", "--keep-newlines")
    assert [problem.message for problem in error.value.problems] == [
        "--lang is given without --split-sentences",
        "--keep-newlines is given without --split-sentences",
    ]


def test_merge_of_split_files_is_preprocessing_the_concatenation(tmp_path: Path) -> None:
    prefixes = []
    for name, texts in {"a": [TEXT, "One."], "b": ["Two. Three.", ""], "ab": [TEXT, "One.", "Two. Three.", ""]}.items():
        preprocess_files(write_lines(tmp_path / "in.jsonl", texts), tmp_path / name, "--split-sentences")
        prefixes.append(f"{tmp_path / name}_text_sentence")
    merge_data.main(["--input", *prefixes[:2], "--output-prefix", str(tmp_path / "m")])
    for suffix in (".bin", ".idx", ".json"):
        assert Path(f"{tmp_path / 'm'}{suffix}").read_bytes() == Path(f"{prefixes[2]}{suffix}").read_bytes()
