from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_ds.errors import DataError
from megatron_ds.tasks.classification_batch import make_task_batch
from megatron_ds.tasks.race.encode import clean_text, encode_race, with_option
from megatron_ds.tasks.race.read import RaceQuestion, read_race
from megatron_ds.tokenizers import Tokenizer

MIDDLE = {
    "answers": ["B", "D"],
    "options": [["the fox", "a cafe", "hello", "mask"], ["cat", "dog", "hat", "bat"]],
    "questions": ["The _ is a _ .", "What jumps?"],
    "article": "the fox jumps\n over . the cafe",
    "id": "middle1.txt",
}
HIGH = {**MIDDLE, "answers": ["A", "C"], "article": "hello hello", "id": "high7.txt"}


def write_race(folder: Path, middle: object = MIDDLE, high: object = HIGH) -> Path:
    for level, text in (("middle", middle), ("high", high)):
        (folder / level).mkdir(parents=True)
        (folder / level / "1.txt").write_text(json.dumps(text), encoding="utf-8")
    return folder


def message(folder: Path, *, need_labels: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        read_race(folder, need_labels=need_labels)
    return str(caught.value)


def test_read_race_folder_has_both_levels(tmp_path: Path) -> None:
    race = read_race(write_race(tmp_path), need_labels=True)
    assert race.articles == (MIDDLE["article"], HIGH["article"])
    assert [question.level for question in race.questions] == ["middle", "middle", "high", "high"]
    assert [question.article for question in race.questions] == [0, 0, 1, 1]
    assert [question.label for question in race.questions] == [1, 3, 0, 2]
    first = RaceQuestion("middle1.txt:0", 0, "The _ is a _ .", ("the fox", "a cafe", "hello", "mask"), 1, "middle")
    assert race.questions[0] == first
    high = read_race(tmp_path / "high", need_labels=True)
    assert [(question.uid, question.level) for question in high.questions] == [
        ("high7.txt:0", "high"),
        ("high7.txt:1", "high"),
    ]


@pytest.mark.parametrize("indent", [None, 1])
def test_read_race_file_with_several_texts_has_all(tmp_path: Path, indent: int | None) -> None:
    lines = "\n".join(json.dumps(text, indent=indent) for text in (MIDDLE, HIGH))
    (tmp_path / "all.txt").write_text(f"{lines}\n", encoding="utf-8-sig")
    race = read_race(tmp_path, need_labels=True)
    assert len(race.articles) == 2
    assert [question.level for question in race.questions] == [None] * 4


def test_read_race_without_answers_is_for_tests_only(tmp_path: Path) -> None:
    text = {key: value for key, value in MIDDLE.items() if key != "answers"}
    race = read_race(write_race(tmp_path / "a", text, text), need_labels=False)
    assert not race.has_labels
    assert f"4 of 4 questions in {tmp_path}/a have no answer" in message(tmp_path / "a")
    write_race(tmp_path / "b", MIDDLE, text)
    assert f"2 of 4 questions in {tmp_path}/b have no answer" in message(tmp_path / "b", need_labels=False)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"answers": ["A", "E"]}, "middle/1.txt:1 question 2 has the unknown answer 'E'\n  answers are A, B, C, D"),
        ({"answers": ["A"]}, "middle/1.txt:1 has 2 questions, 2 options, 1 answers"),
        ({"options": [["a", "b", "c", "d"], ["a", "b"]]}, "1.txt:1 question 2 has 2 options, and RACE has 4"),
        ({"options": [["a", "b", "c", 4], []]}, "1.txt:1 question 1 has options that are no list of texts"),
        ({"questions": ["a", None]}, "1.txt:1 question 2 is no text"),
        ({"questions": "a"}, "1.txt:1 has questions that are no list"),
        ({"article": None}, "1.txt:1 has an article that is no text"),
        # Half of a surrogate pair has no bytes.
        ({"article": "a\ud800"}, "1.txt:1 has an article that is no text"),
        ({"id": "\udfff"}, "1.txt:1 has an id that is no text"),
    ],
)
def test_read_race_wrong_text_names_what_is_wrong(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    assert found in message(write_race(tmp_path, {**MIDDLE, **change}))


def test_read_race_wrong_files_are_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/no does not exist" in message(tmp_path / "no")
    assert f"{tmp_path} has no .txt files, nor have middle and high in it" in message(tmp_path)
    file = tmp_path / "1.txt"
    file.write_text("")
    assert f"{file} is a file, not a folder" in message(file)
    assert f"{file} is empty" in message(tmp_path)
    file.write_text("[1]")
    assert f"{file}:1 is a JSON list, not an object" in message(tmp_path)
    file.write_text('\n{"article": "a",\n "questions": [}')
    assert f"{file}:3 is not JSON: Expecting value" in message(tmp_path)
    file.write_text(f"\n\n{json.dumps(MIDDLE, indent=0)}\n\n[2]")
    assert f"{file}:{3 + json.dumps(MIDDLE, indent=0).count(chr(10)) + 2} is a JSON list" in message(tmp_path)
    file.write_text('{"article": "a", "id": "b"}')
    assert f"{file}:1 has no questions and no options; it has article, id" in message(tmp_path)
    file.write_text(f'{{"article": {"9" * 5000}}}')
    assert f"{file}:1 can't be read: Exceeds the limit" in message(tmp_path)
    file.write_bytes(b"{\xe9")
    assert f"{file} is not UTF-8" in message(tmp_path)
    file.write_text('{"article": "a", "questions": [], "options": [], "answers": []}')
    assert f"{tmp_path} has texts and no questions" in message(tmp_path)
    (tmp_path / "2.txt").symlink_to(tmp_path / "gone")
    assert f"{tmp_path}/2.txt can't be read: No such file or directory" in message(tmp_path)


def test_with_option_takes_the_place_of_every_blank() -> None:
    assert with_option("The _ is a _ .", "fox") == "The fox is a fox ."
    assert with_option("What jumps?", "cat") == "What jumps? cat"


def test_clean_text_is_megatrons() -> None:
    assert clean_text("the fox\n\n jumps . a  cafe\t.") == "the fox jumps. a cafe ."


def test_encode_race_has_four_rows_of_option_and_article(tmp_path: Path, wordpiece: Tokenizer) -> None:
    encoded = encode_race([read_race(write_race(tmp_path), need_labels=True)], wordpiece, 32)
    assert len(encoded) == 4
    sample = encoded[0]
    assert sample.tokens.shape == sample.token_types.shape == sample.padding_mask.shape == (4, 32)
    assert (sample.label, sample.weight, sample.uid) == (1, 1.0, "middle1.txt:0")
    pad, cls, sep = 0, 2, 3
    for row, option in enumerate(MIDDLE["options"][0]):
        question = wordpiece.encode(f"the {option} is a {option} .")
        article = wordpiece.encode("the fox jumps over. the cafe")
        expected = [cls, *question, sep, *article, sep]
        assert sample.tokens[row].tolist() == expected + [pad] * (32 - len(expected))
        types = [0] * (len(question) + 2) + [1] * (len(article) + 1)
        assert sample.token_types[row].tolist() == types + [0] * (32 - len(types))
        assert sample.padding_mask[row].tolist() == [1] * len(expected) + [0] * (32 - len(expected))
    # The other text's article.
    assert wordpiece.decode(encoded[2].tokens[0].tolist()).count("hello") == 2


def test_encode_race_cuts_question_to_its_limit_and_article_to_fit(tmp_path: Path, wordpiece: Tokenizer) -> None:
    text = {**MIDDLE, "article": "fox " * 50, "questions": ["mask " * 20, "the"]}
    race = read_race(write_race(tmp_path, text), need_labels=True)
    assert encode_race([race], wordpiece, 32, 5)[0].tokens[0].tolist().index(3) == 6
    fox, mask = (wordpiece.encode(word)[0] for word in ("fox", "mask"))
    assert encode_race([race], wordpiece, 16, 5)[0].tokens[0].tolist() == [2, *[mask] * 5, 3, *[fox] * 8, 3]
    # By Megatron's limit of 128, nothing is cut here.
    assert encode_race([race], wordpiece, 64)[0].tokens[0].tolist().index(3) == 1 + 20 + 2


def test_encode_race_of_two_folders_has_the_articles_of_both(tmp_path: Path, wordpiece: Tokenizer) -> None:
    write_race(tmp_path)
    sets = [read_race(tmp_path / level, need_labels=True) for level in ("high", "middle")]
    together = encode_race(sets, wordpiece, 32)
    apart = [sample for each in sets for sample in encode_race([each], wordpiece, 32)]
    assert [sample.tokens.tolist() for sample in together] == [sample.tokens.tolist() for sample in apart]
    assert len(apart) == 4


def test_make_task_batch_of_choices_puts_their_rows_one_after_the_other(tmp_path: Path, wordpiece: Tokenizer) -> None:
    encoded = encode_race([read_race(write_race(tmp_path), need_labels=True)], wordpiece, 16)
    batch = make_task_batch([encoded[0], encoded[3]])
    assert [tensor.shape for tensor in batch.inputs] == [(8, 16)] * 3
    assert batch.tokens[:4].tolist() == encoded[0].tokens.tolist()
    assert batch.tokens[4:].tolist() == encoded[3].tokens.tolist()
    labels, weights = batch.targets["classification_loss"]
    assert (labels.tolist(), weights.tolist()) == ([1, 2], [1.0, 1.0])
