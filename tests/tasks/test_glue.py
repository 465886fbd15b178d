from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from megatron_ds.errors import DataError
from megatron_ds.tasks.examples import Example
from megatron_ds.tasks.glue.definitions import GLUE_TASKS
from megatron_ds.tasks.glue.read import read_glue
from tests.tasks.glue_files import FILES, write_glue

# The first example of each file, with its label as a class.
FIRST = {
    ("MNLI", "train"): Example("0", "the fox jumps", "the fox", 2),
    ("MNLI", "dev"): Example("0", "the fox", "a cafe", 0),
    ("MNLI", "test"): Example("9796", "the fox", "a fox", None),
    ("QQP", "train"): Example("133273", "how is the fox?", "the fox?", 1),
    ("QQP", "dev"): Example("201359", "why", "how", 0),
    ("QQP", "test"): Example("7", "would", "meaning", None),
    ("QNLI", "train"): Example("0", "when?", "the fox", 1),
    ("QNLI", "dev"): Example("0", "who?", "the fox", 0),
    ("QNLI", "test"): Example("4", "what?", "the fox", None),
    ("SST-2", "train"): Example("0", "hide new secretions ", None, 0),
    ("SST-2", "dev"): Example("0", "it 's charming . ", None, 1),
    ("SST-2", "test"): Example("3", "uneasy mishmash", None, None),
    ("CoLA", "train"): Example("0", "our friends won't buy this.", None, 1),
    ("CoLA", "dev"): Example("0", "the sailors rode the breeze.", None, 1),
    ("CoLA", "test"): Example("5", "Bill whistled.", None, None),
    ("MRPC", "train"): Example("0", 'Amrozi called "the witness " , of', 'Referring to him as only " the witness', 1),
    ("MRPC", "dev"): Example("0", "he said", "she said", 1),
    ("MRPC", "test"): Example("6", "PCCW", "Current", None),
    ("RTE", "train"): Example("0", "no weapons", "weapons", 1),
    ("RTE", "dev"): Example("0", "a fox", "a fox", 0),
    ("RTE", "test"): Example("2", "one", "two", None),
    ("STS-B", "train"): Example("0", "A plane.", "An air plane.", 4.75),
    ("STS-B", "dev"): Example("0", "A man.", "A hat.", 0.0),
    ("STS-B", "test"): Example("8", "A girl.", "A boy.", None),
    ("WNLI", "train"): Example("0", "I stuck a pin", "the pin", 1),
    ("WNLI", "dev"): Example("0", "the drain", "the hair", 0),
    ("WNLI", "test"): Example("1", "Maude", "Dora", None),
}


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


def message(task: str, path: Path, *, need_labels: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        read_glue(GLUE_TASKS[task], path, need_labels=need_labels)
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_glue_tasks_are_those_of_the_tests_files() -> None:
    assert set(GLUE_TASKS) == set(FILES)


@pytest.mark.parametrize(("task", "split"), FIRST)
def test_read_glue_official_file_gives_its_examples(tmp_path: Path, task: str, split: str) -> None:
    file = read_glue(GLUE_TASKS[task], write_glue(tmp_path, task, split), need_labels=split != "test")
    assert file.examples[0] == FIRST[task, split]
    assert file.has_labels == (split != "test")
    # All lines but the header, of which CoLA's labelled files have none, and QQP's line that is cut in two.
    lines = len(FILES[task][split]) - (task != "CoLA" or split == "test") - 2 * (task == "QQP" and split == "train")
    assert len(file.examples) == lines


def test_read_glue_short_lines_of_qqp_are_counted(tmp_path: Path) -> None:
    file = read_glue(GLUE_TASKS["QQP"], write_glue(tmp_path, "QQP", "train"), need_labels=True)
    assert [example.uid for example in file.examples] == ["133273", "360472"]
    assert file.left_out.describe("line") == (
        f"2 lines left out: 2 with too few columns; the first at {tmp_path}/QQP-train.tsv:3"
    )


def test_read_glue_with_only_short_lines_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", *FILES["QQP"]["train"][:1], "1\t2\t3")
    assert f"{path} has no examples (1 line left out: 1 with too few columns; the first at {path}:2)" in (
        message("QQP", path)
    )


def test_read_glue_long_line_of_qqp_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", *FILES["QQP"]["dev"], "1\t2\t3\t4\t5\t0\t7")
    assert f"{path}:3 has 7 columns, and the file has 6: id, qid1" in message("QQP", path)


def test_read_glue_compressed_with_carriage_returns_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv.gz"
    # \u2028 is no end of a line here.
    path.write_bytes(gzip.compress("sentence\tlabel\r\na\u2028b\t1\r\n\r\n".encode()))
    file = read_glue(GLUE_TASKS["SST-2"], path, need_labels=True)
    assert file.examples == (Example("0", "a\u2028b", None, 1),)


def test_read_glue_columns_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tsentence2\tsentence1\tidx", "entailment\ttwo\tone\t7")
    assert read_glue(GLUE_TASKS["RTE"], path, need_labels=True).examples == (Example("0", "one", "two", 0),)


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("task", ["CoLA", "RTE"])
def test_read_glue_wrong_column_count_names_the_line(tmp_path: Path, task: str, count: int) -> None:
    path = write(tmp_path / "a.tsv", *FILES[task]["train"][:2], "\t".join("1" * count))
    names = ", ".join(GLUE_TASKS[task].bare_columns or GLUE_TASKS[task].headers[0])
    line = len(FILES[task]["train"][:2]) + 1
    assert f"{path}:{line} has {count} columns, and the file has 4: {names}" in message(task, path)


def test_read_glue_unknown_label_names_the_nearest_and_all(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", *FILES["RTE"]["train"][:1], "0\ta\tb\tnot-entailment")
    text = message("RTE", path)
    assert f"{path}:2 has the unknown label 'not-entailment' – did you mean not_entailment?" in text
    assert "the labels of RTE are entailment, not_entailment, in the column 'label'" in text


@pytest.mark.parametrize("score", ["high", "5.1", "-1", "nan", ""])
def test_read_glue_wrong_score_names_it(tmp_path: Path, score: str) -> None:
    path = write(tmp_path / "a.tsv", *FILES["STS-B"]["train"], FILES["STS-B"]["test"][1] + f"\t{score}")
    assert f"{path}:3 has the score {score!r}" in message("STS-B", path)


@pytest.mark.parametrize(
    ("task", "other", "split", "named"),
    [("MNLI", "QQP", "train", "QQP"), ("RTE", "MNLI", "test", "MNLI"), ("QNLI", "WNLI", "dev", "RTE or WNLI")],
)
def test_read_glue_header_of_another_task_names_it(
    tmp_path: Path, task: str, other: str, split: str, named: str
) -> None:
    path = write_glue(tmp_path, other, split)
    assert f"{path}:1 has the header of {named}, and the task is {task}" in message(task, path, need_labels=False)


def test_read_glue_unknown_header_lists_the_right_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "premise\thypothesis", "a\tb")
    text = message("CoLA", path)
    assert f"{path}:1 is not the first line of a CoLA file; it has 2 columns: 'premise', 'hypothesis'" in text
    assert "without a header: source, label, mark, sentence; or with one: index, sentence" in text


def test_read_glue_without_labels_where_they_are_needed_says_so(tmp_path: Path) -> None:
    path = write_glue(tmp_path, "MRPC", "test")
    assert f"{path} has no labels: its columns are index, #1 ID, #2 ID, #1 String" in message("MRPC", path)


def test_read_glue_missing_empty_or_no_utf8_names_the_file(tmp_path: Path) -> None:
    assert f"{tmp_path}/no.tsv does not exist" in message("RTE", tmp_path / "no.tsv")
    assert f"{tmp_path} is a folder, not a file" in message("RTE", tmp_path)
    assert f"{tmp_path}/a.tsv is empty" in message("RTE", write(tmp_path / "a.tsv"))
    assert f"{tmp_path}/b.tsv has no examples" in message("RTE", write(tmp_path / "b.tsv", FILES["RTE"]["dev"][0]))
    path = tmp_path / "c.tsv"
    path.write_bytes(b"sentence\tlabel\ncaf\xe9\t1\n")
    assert f"{path}:2 is not UTF-8: byte 0xe9 at position 3" in message("SST-2", path)
