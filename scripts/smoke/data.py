"""Small data for SMOKE=1: texts about animals, in the formats that the scripts read.

    python scripts/smoke/data.py FOLDER

writes FOLDER/text.jsonl (to preprocess), gpt2/vocab.json and merges.txt, bert/vocab.txt, MNLI/ (GLUE's TSV files),
RACE/ (its folders of JSON texts), sft/ (prompts and responses), LAMBADA (JSON lines) and WIKITEXT103 (raw text).
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.quickstart_data import train_tokenizer, write_json_lines

ANIMALS = ("bird", "cat", "dog", "fox", "horse", "mouse")
COLOURS = ("black", "brown", "grey", "red", "white")
VERBS = ("sings", "sleeps", "runs", "waits", "eats")
PLACES = ("river", "house", "garden", "tree", "bridge", "road")
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NUM_DOCUMENTS, NUM_EXAMPLES, NUM_HELD_OUT, NUM_ARTICLES = 200, 24, 7, 6

# GLUE's columns of MNLI between the numbers and the two sentences.
_PARSES = tuple(f"sentence{number}_{kind}" for kind in ("binary_parse", "parse") for number in (1, 2))
_FIRST_COLUMNS = ("index", "promptID", "pairID", "genre", *_PARSES, "sentence1", "sentence2")


@dataclass(frozen=True)
class Fact:
    """What one animal does."""

    animal: str
    colour: str
    verb: str
    place: str

    @property
    def sentence(self) -> str:
        """The fact as a sentence."""
        return f"The {self.colour} {self.animal} {self.verb} near the {self.place}."


def draw_facts(draws: random.Random, count: int) -> list[Fact]:
    """Facts about `count` animals, each about another one; at most as many as there are animals."""
    return [
        Fact(animal, draws.choice(COLOURS), draws.choice(VERBS), draws.choice(PLACES))
        for animal in draws.sample(ANIMALS, count)
    ]


def document(draws: random.Random) -> str:
    """Some facts, of which the last sentence is the first one once more: its words can be known."""
    facts = draw_facts(draws, draws.randint(3, 6))
    return " ".join(fact.sentence for fact in (*facts, facts[0]))


def write_mnli(folder: Path, draws: random.Random) -> None:
    """GLUE's five files: the hypothesis repeats the premise, puts it elsewhere, or is about another animal."""
    folder.mkdir()
    _write_tsv(folder / "train.tsv", ("label1", "gold_label"), _mnli_rows(draws, NUM_EXAMPLES, num_labels=2))
    labels = (*(f"label{number}" for number in range(1, 6)), "gold_label")
    for name in ("matched", "mismatched"):
        _write_tsv(folder / f"dev_{name}.tsv", labels, _mnli_rows(draws, NUM_HELD_OUT, num_labels=6))
        _write_tsv(folder / f"test_{name}.tsv", (), _mnli_rows(draws, NUM_HELD_OUT, num_labels=0))


def _mnli_rows(draws: random.Random, count: int, num_labels: int) -> Iterator[list[str]]:
    for number in range(count):
        fact, other = draw_facts(draws, 2)
        elsewhere = draws.choice([place for place in PLACES if place != fact.place])
        label, hypothesis = draws.choice(
            [
                ("entailment", f"A {fact.animal} {fact.verb} near the {fact.place}."),
                ("contradiction", f"The {fact.animal} {fact.verb} near the {elsewhere}."),
                ("neutral", other.sentence),
            ]
        )
        parses = ["( )"] * len(_PARSES)
        yield [
            str(number),
            str(number),
            f"{number}n",
            "animals",
            *parses,
            fact.sentence,
            hypothesis,
            *[label] * num_labels,
        ]


def _write_tsv(path: Path, labels: Sequence[str], rows: Iterator[list[str]]) -> None:
    lines = ["\t".join(row) for row in ((*_FIRST_COLUMNS, *labels), *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_race(folder: Path, draws: random.Random) -> None:
    """RACE's folders: train, dev and test, each with middle and high; a file is one article with two questions."""
    for split, count in (("train", NUM_ARTICLES), ("dev", NUM_ARTICLES // 2), ("test", NUM_ARTICLES // 2)):
        for level in ("middle", "high"):
            (folder / split / level).mkdir(parents=True)
            for number in range(count):
                article = _race_article(draws) | {"id": f"{level}{number}.txt"}
                (folder / split / level / f"{number}.txt").write_text(json.dumps(article), encoding="utf-8")


def _race_article(draws: random.Random) -> dict[str, object]:
    facts = draw_facts(draws, 3)
    asked = facts[:2]
    choices = [draws.sample(PLACES, 4) for _ in asked]
    for fact, options in zip(asked, choices, strict=True):
        if fact.place not in options:
            options[draws.randrange(4)] = fact.place
    return {
        "article": " ".join(fact.sentence for fact in facts),
        "questions": [f"Where is the {asked[0].animal}?", f"The {asked[1].animal} is near the _ ."],
        "options": choices,
        "answers": ["ABCD"[options.index(fact.place)] for fact, options in zip(asked, choices, strict=True)],
    }


def responses(draws: random.Random, count: int) -> list[dict[str, str]]:
    """Prompts with a fact and a question, and responses with the answer."""
    facts = [draw_facts(draws, 1)[0] for _ in range(count)]
    return [
        {"prompt": f"{fact.sentence} Where is the {fact.animal}? ", "response": f"Near the {fact.place}."}
        for fact in facts
    ]


def lambada_text(draws: random.Random) -> str:
    """Two facts, and the first one once more without its full stop: the last word can be known from its place there."""
    fact, other = draw_facts(draws, 2)
    return " ".join(one.sentence for one in (fact, other, fact)).removesuffix(".")


def wikitext(draws: random.Random) -> Iterator[str]:
    """The lines of two articles in WikiText's raw form: headings, spaced punctuation, marks inside of words."""
    for animal in ("Bird", "Fox"):
        yield from (" \n", f" = {animal} = \n", " \n")
        for _ in range(4):
            yield " " + document(draws).replace(".", " .").replace("near the", "near @-@ by the") + " \n"


def bert_vocabulary(texts: Sequence[str]) -> list[str]:
    """Special tokens, then every word and mark of the texts, in lower case."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    return [*BERT_SPECIAL, *words]


def main(folder: Path) -> None:
    """Writes everything, unless it is there; the folder appears when all of it is complete."""
    if folder.exists():
        return
    draws = random.Random(0)
    made = folder.with_name(folder.name + ".partial")
    for name in ("gpt2", "bert", "sft"):
        (made / name).mkdir(parents=True)
    documents = [document(draws) for _ in range(NUM_DOCUMENTS)]
    write_json_lines(iter(documents), made / "text.jsonl")
    write_mnli(made / "MNLI", draws)
    write_race(made / "RACE", draws)
    for split, count in (("train", NUM_EXAMPLES), ("valid", NUM_HELD_OUT)):
        lines = [json.dumps(line) + "\n" for line in responses(draws, count)]
        (made / "sft" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_json_lines((lambada_text(draws) for _ in range(NUM_HELD_OUT)), made / "LAMBADA")
    (made / "WIKITEXT103").write_text("".join(wikitext(draws)), encoding="utf-8")
    train_tokenizer(iter(documents), vocab_size=320).model.save(str(made / "gpt2"))
    texts = [*documents, *(path.read_text(encoding="utf-8") for path in (made / "RACE").rglob("*.txt"))]
    (made / "bert" / "vocab.txt").write_text("\n".join(bert_vocabulary(texts)) + "\n", encoding="utf-8")
    made.rename(folder)
    print(f"{folder}: {NUM_DOCUMENTS} documents, vocabularies, MNLI, RACE, prompts, LAMBADA, WikiText")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
