from __future__ import annotations

import gzip
import json
import logging
import multiprocessing
import os
import random
from pathlib import Path

import pytest

from megatron_ds.data import partitions
from megatron_ds.data.input_files import find_inputs
from megatron_ds.data.json_lines import read_span
from megatron_ds.data.partitions import plan_partitions
from megatron_ds.errors import ConfigError, DataError
from tests.data.test_inputs import write_csv
from tests.data.test_preprocess import preprocess_files, run, write_lines
from tests.tokenizers.conftest import byte_level_bpe


def files_of(prefix: Path) -> dict[str, bytes]:
    """What a run wrote, by the end of the name."""
    return {path.name.removeprefix(prefix.name): path.read_bytes() for path in prefix.parent.glob(f"{prefix.name}_*")}


def mixed_inputs(tmp_path: Path) -> list[Path]:
    lines = write_lines(tmp_path / "a.jsonl", [f"line {number} " * (number % 7) for number in range(500)])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    (tmp_path / "c.txt").write_text("one text")
    (tmp_path / "none.txt").touch()
    write_csv(tmp_path / "d.csv", [["text"], *([f"row {number}"] for number in range(300))])
    return [tmp_path / name for name in ("a.jsonl", "empty.jsonl", "b.jsonl.gz", "c.txt", "none.txt", "d.csv")]


@pytest.mark.parametrize(("count", "workers"), [(2, 2), (3, 3), (3, 7), (8, 8)])
def test_partitions_files_are_those_of_one_partition(
    tmp_path: Path, count: int, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = mixed_inputs(tmp_path)
    options = ("--append-eod", "--split-sentences")
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        preprocess_files(inputs, tmp_path / "one", *options)
        expected = caplog.messages
        caplog.clear()
        preprocess_files(inputs, tmp_path / "many", *options, "--partitions", str(count), "--workers", str(workers))
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert [message for message in caplog.messages if "is cut into" not in message] == expected
    assert not list(tmp_path.glob("*.part*"))


def test_partitions_keys_of_any_letters_and_keys_that_begin_alike_do_not_meet(tmp_path: Path) -> None:
    keys = ["a", "a.b", "**", "[x", "0_a", "", ".."]
    source = tmp_path / "in.jsonl"
    documents = [{key: f"{key} {number}" for key in keys} for number in range(50)]
    source.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, options in (("one", ()), ("two", ("--partitions", "2", "--workers", "2"))):
        preprocess_files(source, tmp_path / name, "--json-keys", *keys, *options)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
    assert len(files_of(tmp_path / "one")) == 3 * len(keys)


def test_partitions_of_processes_that_are_not_forked_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level_bpe([]).save(str(tmp_path / "tokenizer.json"))
    source = write_lines(tmp_path / "in.jsonl", [f"text {number}" for number in range(50)])
    flags = ("--tokenizer-name-or-path", str(tmp_path))
    preprocess_files(source, tmp_path / "one", *flags, tokenizer="HFTokenizer")
    context = multiprocessing.get_context("spawn")
    monkeypatch.setattr(multiprocessing, "get_context", lambda: context)
    options = ("--partitions", "2", "--workers", "2")
    preprocess_files(source, tmp_path / "two", *flags, *options, tokenizer="HFTokenizer")
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


@pytest.mark.parametrize("seed", range(20))
def test_plan_partitions_covers_each_line_once_in_order(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    names = []
    for number in range(draw.randint(1, 5)):
        path = tmp_path / f"{number}.jsonl"
        lines = [b"x" * draw.randint(0, 20) + b"\n" for _ in range(draw.randint(0, 30))]
        path.write_bytes(b"".join(lines) + b"end" * draw.randint(0, 1))
        names.append(str(path))
    files = find_inputs(names, None)
    count = draw.randint(1, 9)
    parts = plan_partitions(files, count, num_workers=11)
    assert len(parts) <= count
    assert sum(part.num_workers for part in parts) == 11
    assert all(part.num_workers >= 1 and part.files for part in parts)
    covered = [
        (file.path, line)
        for part in parts
        for file in part.files
        for batch in read_span(file.path, file.span or (0, file.num_bytes), draw.randint(1, 50))
        for line in batch.lines
    ]
    assert covered == [(Path(name), line) for name in names for line in Path(name).read_bytes().splitlines(True)]


def test_plan_partitions_are_of_like_size(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["ten bytes."] * 1000)
    parts = plan_partitions(find_inputs([str(source)], None), 4, num_workers=6)
    assert [part.num_workers for part in parts] == [2, 2, 1, 1]
    sizes = [end - start for part in parts for start, end in [part.files[0].span or (0, 0)]]
    assert max(sizes) - min(sizes) < 100


@pytest.mark.parametrize("workers", ["3", "6"])
def test_partitions_first_bad_line_of_the_input_is_named(tmp_path: Path, workers: str) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["text"] * 3000)
    lines = source.read_bytes().splitlines(keepends=True)
    # The last part meets its bad line at once; the first ones have to go on to theirs.
    lines[1900] = lines[2010] = b"broken\n"
    source.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=rf"{source}:1901 is not JSON"):
        run(source, tmp_path / "out" / "x", "--partitions", "3", "--workers", workers)
    assert list((tmp_path / "out").iterdir()) == []


def test_partitions_bad_lines_are_counted_over_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["a", "", "b"] * 100)
    lines = source.read_bytes().splitlines(keepends=True)
    lines[249], lines[280] = b"broken\n", b'{"title": "x"}\n'
    source.write_bytes(b"".join(lines))
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        options = ("--partitions", "4", "--workers", "4", "--skip-bad-lines")
        assert len(run(source, tmp_path / "out", *options)) == 199
    assert "2 bad lines skipped: 1 not JSON, 1 no key 'text'; the first: " in caplog.text
    assert f"{source}:250 is not JSON" in caplog.text
    assert "99 empty documents skipped under 'text'" in caplog.messages


def test_partitions_process_that_dies_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["a"] * 100)
    monkeypatch.setattr(partitions, "read_and_add", lambda *_: os._exit(9))
    with pytest.raises(DataError, match=r"the process of a partition died\n.*nothing was written"):
        run(source, tmp_path / "out" / "x", "--partitions", "2", "--workers", "2")
    assert list((tmp_path / "out").iterdir()) == []


def test_partitions_without_text_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [""] * 100)
    with pytest.raises(DataError, match="all of its 100 lines are empty"):
        run(source, tmp_path / "out" / "x", "--partitions", "2", "--workers", "2")
    assert list((tmp_path / "out").iterdir()) == []


def test_partitions_that_cannot_be_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("one text")
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        run(tmp_path / "a.txt", tmp_path / "out", "--partitions", "2", "--workers", "2")
    assert "the input is cut into 1 partitions: only JSON lines can be cut" in caplog.messages
    with pytest.raises(ConfigError, match="--partitions 3 need a process each, and --workers is 2"):
        run(tmp_path / "a.txt", tmp_path / "out", "--partitions", "3", "--workers", "2")
    with pytest.raises(ConfigError, match="--partitions is given, and a dataset can't be cut"):
        run(tmp_path, tmp_path / "out", "--input-format", "hf", "--partitions", "2", "--workers", "2")
