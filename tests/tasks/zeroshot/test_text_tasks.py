"""LAMBADA and WikiText: what is scored of a file, what is made of the scores, and files that are refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, cast

import pytest

from megatron_ds.errors import DataError
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.scoring import WindowScore
from megatron_ds.generation.windows import Window
from megatron_ds.tasks.zeroshot.job import TextTask
from megatron_ds.tasks.zeroshot.lambada import lambada_task
from megatron_ds.tasks.zeroshot.results import TaskResult, perplexity, table
from megatron_ds.tasks.zeroshot.run import evaluate_texts
from megatron_ds.tasks.zeroshot.wikitext import detokenize, wikitext_task
from megatron_ds.tokenizers.plain import ByteTokenizer
from tests.tasks.zeroshot.progress import no_progress
from tests.tasks.zeroshot.stubs import StubModel

LENGTH = 24
BYTES = ByteTokenizer()


def _lambada(tmp_path: Path, *texts: Any, strict: bool = True, length: int = LENGTH) -> TextTask:
    file = tmp_path / "lambada.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n\n" for text in texts), encoding="utf-8")
    return lambada_task(file, BYTES, length, strict=strict)


def _evaluate(model: StubModel, task: TextTask) -> TaskResult:
    ((window,),) = task.examples
    model.see(window.tokens)
    (result,) = evaluate_texts(cast(InferenceModel, model), task, 1, no_progress)
    return result


def test_strict_lambada_scores_all_pieces_of_the_last_word_and_else_the_last_token(tmp_path: Path) -> None:
    text = "one two  three.\n"
    strict, last = _lambada(tmp_path, text), _lambada(tmp_path, text, strict=False)
    tokens = tuple(b"one two three.")
    assert strict.examples == ((Window(tokens, len(b" three.")),),)
    assert last.examples == ((Window(tokens, 1),),)


def test_word_with_a_wrong_first_piece_is_wrong_in_strict_lambada_only(tmp_path: Path) -> None:
    """Field report G1."""
    # " go" has three pieces, the first one at place 3.
    model = StubModel(257, wrong=(3,))
    strict = _evaluate(model, _lambada(tmp_path, "you go"))
    assert (strict.metrics["accuracy"], strict.num_examples, strict.num_tokens) == (0.0, 1, 3)
    last = _evaluate(model, _lambada(tmp_path, "you go", strict=False))
    assert (last.metrics["accuracy"], last.num_examples, last.num_tokens) == (1.0, 1, 1)
    right = _evaluate(StubModel(257), _lambada(tmp_path, "you go"))
    assert right.metrics["accuracy"] == 1.0


def test_lambada_counts_words_and_takes_the_mean_of_their_log_probabilities(tmp_path: Path) -> None:
    task = _lambada(tmp_path, "a bc", "d ef", "g hi")
    result = task.summarize([WindowScore(-2.0, 3, 3), WindowScore(-3.0, 3, 2), WindowScore(-1.0, 3, 3)])
    assert result.metrics == {
        "accuracy": pytest.approx(2 / 3),
        "num_right": 2,
        "last_word_perplexity": pytest.approx(math.exp(2)),
    }
    assert (result.num_examples, result.num_tokens) == (3, 9)
    assert (
        "last_token_perplexity" in _lambada(tmp_path, "a b", strict=False).summarize([WindowScore(-1.0, 1, 1)]).metrics
    )


def test_lambada_keeps_the_right_end_of_a_long_context_and_says_so(tmp_path: Path) -> None:
    task = _lambada(tmp_path, "a" * 40 + " bcd", "a b")
    ((window,), _) = task.examples
    assert window == Window(tuple(b"a" * (LENGTH + 1 - 4) + b" bcd"), 4)
    assert task.notes == (
        "1 of 2 passages have more than the 24 tokens that the model sees: their right ends are kept",
    )
    assert _lambada(tmp_path, "a b").notes == ()


BAD_LAMBADA = {
    "no JSON": ("{", "line 2 is no JSON"),
    "no object": ('"text"', "line 2 has no text"),
    "no text": ('{"txt": "a b"}', "line 2 has no text"),
    "other type": ('{"text": ["a", "b"]}', "line 2 has no text"),
    "no context": ('{"text": " word "}', "line 2 has no context"),
    "half a letter": (r'{"text": "a b\ud800 c"}', "line 2 has half of a surrogate pair"),
    "empty text": ('{"text": ""}', "line 2 has no context"),
}


@pytest.mark.parametrize("case", BAD_LAMBADA)
def test_lambada_line_that_is_no_passage_is_refused_by_number(case: str, tmp_path: Path) -> None:
    line, message = BAD_LAMBADA[case]
    file = tmp_path / "lambada.jsonl"
    file.write_text('{"text": "a b"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        lambada_task(file, BYTES, LENGTH, strict=True)


@pytest.mark.parametrize("content", [b"", b" \n\n", b"\xff\xfe", None])
def test_file_that_is_empty_missing_or_no_text_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    for make in (
        lambda: lambada_task(file, BYTES, LENGTH, strict=True),
        lambda: wikitext_task(file, BYTES, LENGTH, stride=4),
    ):
        with pytest.raises(DataError, match="can't be read" if content in (b"\xff\xfe", None) else "is empty"):
            make()


def test_detokenized_text_is_that_of_the_harness() -> None:
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    pieces = [*"()[]{}\"':;.!?,N°", "@-@", "@,@", "@.@", "=", "\n", "'s", "s", "word", "1"]
    generator, changed = random.Random(0), 0
    for _ in range(300):
        text = " " + " ".join(generator.choices(pieces, k=40)) + " \n"
        assert detokenize(text) == wikitext_detokenizer({"page": text})
        changed += detokenize(text) != text
    assert changed == 300


WIKI = " = Cats = \n \n The cat ( a pet ) , 1 @,@ 000 of them . \n"


def test_wikitext_scores_every_token_but_the_first_in_windows(tmp_path: Path) -> None:
    file = tmp_path / "wiki.test.tokens"
    file.write_text(WIKI)
    task = wikitext_task(file, BYTES, LENGTH, stride=5)
    (windows,) = task.examples
    tokens = list(detokenize(WIKI).encode())
    assert [token for window in windows for token in window.tokens[-window.num_targets :]] == tokens[1:]
    assert [window.num_targets for window in windows][:2] == [LENGTH, 5]


def test_wikitext_perplexity_is_by_tokens_and_by_words_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "wiki.test.tokens"
    file.write_text(WIKI)
    model, length = StubModel(257, sureness=0.0), 100
    result = _evaluate(model, wikitext_task(file, BYTES, length, stride=length))
    # = Cats = EOL EOL The cat ( a pet ) , 1 @,@ 000 of them . by single spaces
    num_targets, num_words = len(detokenize(WIKI).encode()) - 1, 18
    assert result.metrics["loss"] == pytest.approx(math.log(257), rel=1e-6)
    assert result.metrics["perplexity"] == pytest.approx(257, rel=1e-5)
    assert result.metrics["token_ratio"] == num_targets / (num_words - 1)
    assert result.metrics["word_perplexity"] == pytest.approx(257 ** (num_targets / (num_words - 1)), rel=1e-4)
    assert result.num_tokens == num_targets


def test_wikitext_file_of_one_word_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "wiki"
    file.write_text("word")
    with pytest.raises(DataError, match="fewer than two words"):
        wikitext_task(file, BYTES, LENGTH, stride=4)


def test_table_has_a_row_for_each_number() -> None:
    results = [TaskResult("A", {"accuracy": 0.5, "perplexity": 12345.678}, 2000, 31), TaskResult("long", {"x": 1.0})]
    assert table(results) == [
        "task  metric        value  examples  tokens",
        "-------------------------------------------",
        "A     accuracy        0.5     2,000      31",
        "      perplexity  12345.7",
        "long  x                 1",
    ]


def test_perplexity_of_a_loss_beyond_all_numbers_is_infinite() -> None:
    assert perplexity(1000.0) == math.inf
