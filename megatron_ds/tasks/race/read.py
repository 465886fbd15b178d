"""Reads RACE: folders of texts with questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_ds.data.documents import BadDocumentError, decode_utf8
from megatron_ds.data.json_lines import BYTE_ORDER_MARK
from megatron_ds.errors import DataError, Problem
from megatron_ds.tasks.predictions import CHOICES
from megatron_ds.utils.text import has_bytes

LEVELS = ("middle", "high")
_KEYS = ("article", "questions", "options", "answers")
_SHAPE = "a text of RACE is an object with article, questions, options (4 for each question), answers (A to D) and id"


@dataclass(frozen=True)
class RaceQuestion:
    """One question.

    Attributes:
        uid: the text's id and the question's number in it, from 0: ``high19088.txt:2``.
        article: number of its text.
        question: the question, or a sentence with ``_`` for what is missing.
        options: four answers.
        label: number of the right one; None in a file without answers.
        level: ``middle`` or ``high``, by the folder; None in a folder of another name.
    """

    uid: str
    article: int
    question: str
    options: tuple[str, ...]
    label: int | None
    level: str | None


@dataclass(frozen=True)
class RaceSet:
    """The texts of a folder, with their questions.

    Attributes:
        path: the folder.
        articles: the texts.
        questions: at least one.
    """

    path: str
    articles: tuple[str, ...]
    questions: tuple[RaceQuestion, ...]

    @property
    def has_labels(self) -> bool:
        """Whether the questions have answers."""
        return self.questions[0].label is not None


def read_race(folder: Path, *, need_labels: bool) -> RaceSet:
    """Reads a folder of texts: its ``*.txt``, and those of ``middle`` and ``high`` in it, sorted by name.

    A file has one JSON object or several, each over one line or more.

    Args:
        folder: for instance ``RACE/train``, or ``RACE/train/high``.
        need_labels: refuse texts without answers.

    Raises:
        DataError: there is no such folder, it has no texts, or one of them is not RACE's. Names file and line.
    """
    articles: list[str] = []
    questions: list[RaceQuestion] = []
    for path in _files(folder):
        for place, text in _objects(path):
            _check(text, place)
            level = path.parent.name if path.parent.name in LEVELS else None
            questions += _questions(text, place, str(text.get("id", path.name)), len(articles), level)
            articles.append(text["article"])
    if not questions:
        raise DataError(Problem(f"{folder} has texts and no questions", advice=_SHAPE))
    unlabelled = sum(question.label is None for question in questions)
    if unlabelled and (need_labels or unlabelled < len(questions)):
        found = f"{unlabelled} of {len(questions)} questions in {folder} have no answer"
        raise DataError(Problem(found, advice="texts without answers go to --test-data, apart from those with them"))
    return RaceSet(str(folder), tuple(articles), tuple(questions))


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.is_file() else "does not exist"
        raise DataError(Problem(f"{folder} {what}", advice="give a folder of RACE, for instance RACE/train"))
    files = [path for each in (folder, *(folder / level for level in LEVELS)) for path in sorted(each.glob("*.txt"))]
    if not files:
        found = f"{folder} has no .txt files, nor have {' and '.join(LEVELS)} in it"
        raise DataError(Problem(found, advice="give a folder of RACE, for instance RACE/train"))
    return files


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file, each with its place."""
    try:
        content = decode_utf8(path.read_bytes().removeprefix(BYTE_ORDER_MARK))
    except OSError as error:
        raise DataError(Problem(f"{path} can't be read: {error.strerror}", advice="remove or restore it")) from None
    except BadDocumentError as error:
        raise DataError(Problem(f"{path} {error.detail}", advice="convert the file to UTF-8")) from None
    if not content.strip():
        raise DataError(Problem(f"{path} is empty", advice="remove or restore it"))
    decoder = json.JSONDecoder()
    line, last, start = 1, 0, _next(content, 0)
    while start < len(content):
        line, last = line + content.count("\n", last, start), start
        place = f"{path}:{line}"
        try:
            found, end = decoder.raw_decode(content, start)
        except json.JSONDecodeError as error:
            raise DataError(Problem(f"{path}:{error.lineno} is not JSON: {error.msg}", advice=_SHAPE)) from None
        except ValueError as error:
            # A number of more digits than Python reads.
            raise DataError(Problem(f"{place} can't be read: {error}", advice=_SHAPE)) from None
        except RecursionError:
            raise DataError(Problem(f"{place} is nested too deep to be read", advice=_SHAPE)) from None
        if not isinstance(found, dict):
            raise DataError(Problem(f"{place} is a JSON {type(found).__name__}, not an object", advice=_SHAPE))
        yield place, found
        start = _next(content, end)


def _next(content: str, start: int) -> int:
    """Where something other than space begins."""
    while start < len(content) and content[start].isspace():
        start += 1
    return start


def _check(text: Mapping[str, Any], place: str) -> None:
    """Checks the shape of a text: what has to be there, and as many options and answers as questions."""
    missing = [key for key in _KEYS[:3] if key not in text]
    if missing:
        has = ", ".join(text) or "nothing"
        raise DataError(Problem(f"{place} has no {' and no '.join(missing)}; it has {has}", advice=_SHAPE))
    if not _is_text(text["article"]):
        raise DataError(Problem(f"{place} has an article that is no text", advice=_SHAPE))
    if not _is_text(str(text.get("id", ""))):
        raise DataError(Problem(f"{place} has an id that is no text", advice=_SHAPE))
    for key in _KEYS[1:]:
        if key in text and not isinstance(text[key], list):
            raise DataError(Problem(f"{place} has {key} that are no list", advice=_SHAPE))
    counts = {key: len(text[key]) for key in _KEYS[1:] if key in text}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {key}" for key, count in counts.items())
        raise DataError(Problem(f"{place} has {found}", advice="each question needs its options and its answer"))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and has_bytes(value)


def _questions(
    text: Mapping[str, Any], place: str, name: str, article: int, level: str | None
) -> Iterator[RaceQuestion]:
    answers: Sequence[object] = text.get("answers", [None] * len(text["questions"]))
    for number, (question, options, answer) in enumerate(zip(text["questions"], text["options"], answers, strict=True)):
        of = f"{place} question {number + 1}"
        if not _is_text(question):
            raise DataError(Problem(f"{of} is no text", advice=_SHAPE))
        if not isinstance(options, list) or not all(map(_is_text, options)):
            raise DataError(Problem(f"{of} has options that are no list of texts", advice=_SHAPE))
        if len(options) != len(CHOICES):
            raise DataError(Problem(f"{of} has {len(options)} options, and RACE has {len(CHOICES)}", advice=_SHAPE))
        label = None if answer is None else _label(answer, of)
        yield RaceQuestion(f"{name}:{number}", article, question, tuple(options), label, level)


def _label(answer: object, of: str) -> int:
    if isinstance(answer, str) and len(answer) == 1 and answer in CHOICES:
        return CHOICES.index(answer)
    raise DataError(Problem(f"{of} has the unknown answer {answer!r}", advice=f"answers are {', '.join(CHOICES)}"))
