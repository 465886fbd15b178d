from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
import logging
import lzma
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from megatron_ds.data import input_files
from megatron_ds.data.input_files import open_input
from megatron_ds.data.records import RecordBatch, read_csv, read_parquet, read_text_files
from megatron_ds.errors import ConfigError, DataError
from tests.data.test_preprocess import run, text_of, write_lines

TEXTS = ["one", 'two "quoted", with a comma', "three\nlines\r\nand\x00 NUL", "", "e\u0301 \u00e9 ☕"]
KEPT = [text for text in TEXTS if text]


def zst(content: bytes) -> bytes:
    """As the zstd tool packs: with a checksum."""
    return zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: True})


COMPRESSIONS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zst}


def texts_of(source: Path | list[Path], tmp_path: Path, *options: str) -> list[str]:
    return [text_of(ids) for ids in run(source, tmp_path / "out", *options)]


def write_csv(path: Path, rows: list[list[str]], delimiter: str = ",") -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    path.write_bytes(text.getvalue().encode())
    return path


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSIONS.items())
@pytest.mark.parametrize("workers", ["1", "2"])
def test_input_compressed_lines_are_those_of_the_plain_file(
    tmp_path: Path, suffix: str, compress, workers: str
) -> None:
    plain = write_lines(tmp_path / "in.jsonl", TEXTS).read_bytes()
    source = tmp_path / f"in.jsonl{suffix}"
    # Two members, as from `cat a.gz b.gz`.
    source.write_bytes(compress(plain) + compress(plain))
    assert texts_of(source, tmp_path, "--workers", workers) == KEPT * 2


def test_input_zst_with_a_long_window_is_read(tmp_path: Path) -> None:
    plain = write_lines(tmp_path / "in.jsonl", TEXTS).read_bytes()
    with zstd.open(tmp_path / "in.jsonl.zst", "wb", options={zstd.CompressionParameter.window_log: 28}) as file:
        file.write(plain)
    assert texts_of(tmp_path / "in.jsonl.zst", tmp_path) == KEPT


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSIONS.items())
def test_input_damaged_compressed_file_is_named_and_nothing_stays(tmp_path: Path, suffix: str, compress) -> None:
    source = tmp_path / f"in.jsonl{suffix}"
    whole = compress(write_lines(tmp_path / "in.jsonl", [str(number) for number in range(5000)]).read_bytes())
    for content in (whole[: len(whole) // 2], b"no such file", whole[:200] + bytes(50) + whole[250:]):
        source.write_bytes(content)
        with pytest.raises(DataError, match=rf"{source} is damaged"):
            run(source, tmp_path / "out" / "x")
        assert list((tmp_path / "out").iterdir()) == []


def test_input_pattern_is_expanded_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "b/c/3.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_lines(tmp_path / name, [name])
    (tmp_path / "a" / "other.txt").write_text("no")
    assert texts_of([tmp_path / "**" / "*.jsonl"], tmp_path) == ["a/1.jsonl", "b/2.jsonl", "b/c/3.jsonl"]
    odd = write_lines(tmp_path / "odd[1].jsonl", ["a file's own name comes first"])
    assert texts_of(odd, tmp_path) == ["a file's own name comes first"]


def test_input_every_wrong_name_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.zip").touch()
    (tmp_path / "in.parquet.gz").touch()
    names = ["*.csv", ".", "missing.txt", "in.jsonl.zip", "in.parquet.gz"]
    with pytest.raises(ConfigError) as error:
        run([tmp_path / name for name in names], tmp_path / "out")
    for text in (
        f"no file matches --input {tmp_path / '*.csv'}",
        f"--input {tmp_path} is a folder",
        f"input file not found: {tmp_path / 'missing.txt'}",
        f"{tmp_path / 'in.jsonl.zip'} can't be read: .zip files are not supported",
        f"{tmp_path / 'in.parquet.gz'} can't be read: Parquet compresses its columns itself",
    ):
        assert text in str(error.value)


def test_input_named_twice_is_read_twice_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["a"])
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        assert texts_of([source, tmp_path / "*.jsonl"], tmp_path) == ["a", "a"]
    assert f"{source} is named more than once in --input, and is read as often" in caplog.messages


def test_input_plain_text_is_one_document_per_file(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    (tmp_path / "5.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfpacked"))
    assert texts_of(tmp_path / "*.txt*", tmp_path) == [*KEPT, "packed"]


def test_input_json_lines_named_txt_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        write_lines(tmp_path / f"{number}.txt", ["a", "b"])
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        assert len(texts_of(tmp_path / "*.txt", tmp_path)) == 2
    hint = f"{tmp_path / '0.txt'} is read as one text; if it has JSON lines, give --input-format jsonl"
    assert caplog.messages == [hint]
    assert texts_of(tmp_path / "*.txt", tmp_path, "--input-format", "jsonl") == ["a", "b"] * 2


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSIONS.items())
@pytest.mark.parametrize("partitions", ["1", "2"])
def test_input_compressed_file_with_anything_but_whole_streams_is_named_and_nothing_stays(
    tmp_path: Path, suffix: str, compress, partitions: str
) -> None:
    source = tmp_path / f"in.jsonl{suffix}"
    whole = compress(write_lines(tmp_path / "in.jsonl", [str(number) for number in range(5000)]).read_bytes())
    small = compress(b'{"text": "a"}\n')
    damaged_header = bytes(byte ^ 0xFF for byte in small[:4]) + small[4:]
    contents = (b"", whole + damaged_header, whole + b"garbage", whole + small + b"x", whole + small[:3], small + b"\n")
    for content in (*contents, small + damaged_header + small):
        source.write_bytes(content)
        with pytest.raises(DataError, match=rf"{source} is damaged"):
            run(source, tmp_path / "out" / "x", "--partitions", partitions, "--workers", partitions)
        assert list((tmp_path / "out").iterdir()) == []


def test_input_xz_padding_between_and_behind_streams_is_skipped(tmp_path: Path) -> None:
    first, second = (lzma.compress(b'{"text": "%s"}\n' % text) for text in (b"a", b"b"))
    source = tmp_path / "in.jsonl.xz"
    source.write_bytes(first + bytes(4) + second + bytes(100_000))
    assert texts_of(source, tmp_path) == ["a", "b"]
    source.write_bytes(first + bytes(3))
    with pytest.raises(DataError, match="3 bytes of padding behind a stream, no multiple of 4"):
        run(source, tmp_path / "out")


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSIONS.items())
def test_input_compressed_file_is_read_like_the_plain_one_in_pieces_of_any_size(
    tmp_path: Path, suffix: str, compress
) -> None:
    plain = random.Random(1).randbytes(300_000) + bytes(1_000_000)
    source = tmp_path / f"in{suffix}"
    source.write_bytes(compress(plain[:1000]) + compress(b"") + compress(plain[1000:]))
    with open_input(source) as file:
        assert file.read() == plain
    with open_input(source) as file:
        assert b"".join(iter(lambda: file.read(7777), b"")) == plain


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSIONS.items())
@pytest.mark.parametrize("name", ["in.jsonl", "in", "in.txt", "in.csv"])
def test_input_compressed_file_without_its_suffix_is_told(tmp_path: Path, suffix: str, compress, name: str) -> None:
    (tmp_path / name).write_bytes(compress(b'{"text": "a"}\n' * 100))
    for options in ((), ("--skip-bad-lines",), ("--partitions", "2", "--workers", "2")):
        with pytest.raises(DataError, match=rf"{tmp_path / name} looks like .*\n  give it the suffix {suffix}$"):
            run(tmp_path / name, tmp_path / "out" / "x", *options)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    ['[{"text": "a"}, {"text": "b"}]', '[\n{"text": "a"},\n{"text": "b"}\n]\n', '\ufeff [ \r\n{"text": "b"}\n]'],
)
@pytest.mark.parametrize("options", [(), ("--skip-bad-lines",), ("--partitions", "2", "--workers", "2")])
def test_input_json_list_is_told(tmp_path: Path, content: str, options: tuple[str, ...]) -> None:
    source = tmp_path / "in.json"
    source.write_text(content, encoding="utf-8", newline="")
    with pytest.raises(DataError, match=rf"{source} is a JSON list, not JSON lines\n  convert it to one object a line"):
        run(source, tmp_path / "out" / "x", *options)
    assert list((tmp_path / "out").iterdir()) == []


def test_input_line_with_a_list_is_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('[1, 2]\n{"text": "a"}\n[\n')
    with pytest.raises(DataError, match="1 is a JSON list, not an object"):
        run(tmp_path / "in.jsonl", tmp_path / "out")
    assert texts_of(tmp_path / "in.jsonl", tmp_path, "--skip-bad-lines") == ["a"]


def test_input_pipe_or_device_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError) as error:
        run([tmp_path / "fifo", Path("/dev/null")], tmp_path / "out")
    assert [problem.message for problem in error.value.problems] == [
        f"--input {name} is {kind}, which can't be read: only files can, as their size has to be known"
        for name, kind in ((tmp_path / "fifo", "a pipe"), ("/dev/null", "a device"))
    ]


@pytest.mark.parametrize("options", [(), ("--input-format", "hf")])
def test_input_that_cannot_be_looked_for_is_told(
    tmp_path: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"can't be looked for: .*File name too long"):
        run([tmp_path / ("x" * 300)], tmp_path / "out", *options)
    # Root may search every folder, so the tests can't make one that may not be.
    closed = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "closed" / "a"))
    monkeypatch.setattr(input_files, "_expand", Mock(side_effect=closed))
    monkeypatch.setattr(input_files, "_dataset", Mock(side_effect=closed))
    with pytest.raises(ConfigError, match=rf"--input {tmp_path}/a can't be looked for: .*Permission denied"):
        run([tmp_path / "a"], tmp_path / "out", *options)


def test_input_pattern_in_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(input_files.glob, "glob", lambda *_, **__: [])
    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(ConfigError, match=r"\*\.jsonl can't be looked for: .*Permission denied"):
        run([tmp_path / "a*" / "*.jsonl"], tmp_path / "out")
    closed.assert_called_once()


@pytest.mark.parametrize("name", ["in.jsonl", "in.txt", "in.jsonl.gz"])
def test_input_empty_file_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    with pytest.raises(DataError, match=r"the input has no text under 'text': it is empty"):
        run(tmp_path / name, tmp_path / "out" / "x")
    assert list((tmp_path / "out").iterdir()) == []


def test_input_text_that_is_not_utf8_is_named_or_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "1.txt").write_bytes(b"good")
    (tmp_path / "2.txt").write_bytes(b"bad\xe9")
    with pytest.raises(DataError, match=rf"{tmp_path / '2.txt'} is not UTF-8: byte 0xe9 at position 3"):
        run(tmp_path / "*.txt", tmp_path / "out")
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        assert texts_of(tmp_path / "*.txt", tmp_path, "--skip-bad-lines", "--workers", "2") == ["good"]
    assert "1 bad line skipped: 1 not UTF-8; the first" in caplog.text


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_input_csv_texts_survive(tmp_path: Path, suffix: str, delimiter: str) -> None:
    # Python 3.10's csv module takes no NUL.
    texts = [text.replace("\x00", "") for text in [*TEXTS, "x" * 300_000]]
    source = write_csv(tmp_path / f"in{suffix}", [["n", "text"], *(["1", text] for text in texts)], delimiter)
    expected = [text for text in texts if text]
    limit = csv.field_size_limit()
    assert texts_of(source, tmp_path) == expected
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes() + b"\r\n\r\n")
    assert texts_of(source, tmp_path) == expected
    source.rename(tmp_path / "in.data")
    assert texts_of(tmp_path / "in.data", tmp_path, "--input-format", suffix[1:]) == expected
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"only", "has 1 columns where the first row has 2"),
        (b'"a"b,c', "is not CSV: ',' expected after '\"'"),
        (b"\xff,x", "is not UTF-8: byte 0xff at position 0"),
    ],
)
def test_input_csv_bad_row_is_named_by_its_line_or_skipped(tmp_path: Path, row: bytes, message: str) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(b'text,n\n"a\nb",1\n' + row + b"\nc,2\n")
    with pytest.raises(DataError, match=rf"{source}:4 {message}"):
        run(source, tmp_path / "out" / "x")
    assert list((tmp_path / "out").iterdir()) == []
    assert texts_of(source, tmp_path, "--skip-bad-lines") == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("header", "message"),
    [(b"", "has no column 'text'; it has none"), (b"txt,n\n", "it has 'txt', 'n'"), (b"text,text\n", "more than one")],
)
def test_input_csv_header_without_the_key_refused(tmp_path: Path, header: bytes, message: str) -> None:
    (tmp_path / "in.csv").write_bytes(header)
    with pytest.raises(DataError, match=message):
        run(tmp_path / "in.csv", tmp_path / "out", "--skip-bad-lines")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_input_parquet_texts_survive(tmp_path: Path, kind: pa.DataType, workers: str) -> None:
    column = pa.array(
        [text.encode() for text in TEXTS] if kind == pa.binary() else TEXTS,
        pa.binary() if kind == pa.binary() else pa.string(),
    )
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"n": range(len(TEXTS)), "text": column.cast(kind)}), source, row_group_size=2)
    assert texts_of(source, tmp_path, "--workers", workers) == KEPT


def test_input_parquet_bad_rows_are_named_or_skipped(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    not_utf8 = pa.array([b"a", b"\xff", None, b"b"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": not_utf8, "n": [1, 2, 3, 4]}), source, row_group_size=3)
    with pytest.raises(DataError, match=rf"{source}: row 2 is not UTF-8"):
        run(source, tmp_path / "out")
    assert texts_of(source, tmp_path, "--skip-bad-lines") == ["a", "b"]
    with pytest.raises(DataError, match=rf"{source}: row 1 has a value of type int under 'n'"):
        run(source, tmp_path / "out", "--json-keys", "n")
    with pytest.raises(DataError, match=rf"{source} has no column 'title'; it has 'text', 'n'"):
        run(source, tmp_path / "out", "--json-keys", "text", "title")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:60] + bytes(200) + whole[260:]])
def test_input_damaged_parquet_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": [f"text number {number}" for number in range(1000)]}), source)
    source.write_bytes(damage(source.read_bytes()))
    with pytest.raises(DataError, match=rf"{source} is damaged, or not a Parquet file.*\n.*nothing was written"):
        run(source, tmp_path / "out")


def test_input_formats_may_be_mixed_in_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["p"]}), tmp_path / "p.parquet")
    (tmp_path / "t.txt").write_text("t")
    sources = [
        write_lines(tmp_path / "j.jsonl", ["j"]),
        tmp_path / "t.txt",
        write_csv(tmp_path / "c.csv", [["text"], ["c"]]),
    ]
    assert texts_of([*sources, tmp_path / "p.parquet", *sources], tmp_path) == list("jtcpjtc")


def test_input_batches_of_every_format_are_bounded(tmp_path: Path) -> None:
    texts = [f"{number:04d}" * 10 for number in range(1000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    for text in texts:
        (tmp_path / f"{text}.txt").write_text(text)
    batches: list[list[RecordBatch]] = [
        list(read_csv(write_csv(tmp_path / "in.csv", [["text"], *([text] for text in texts)]), ",", ["text"], 2000)),
        list(read_parquet(tmp_path / "in.parquet", ["text"], 2000)),
        list(read_text_files(sorted(tmp_path.glob("*.txt")), 2000)),
    ]
    for each in batches:
        assert [batch.document(index) for batch in each for index in range(len(batch))] == [
            {"text": text} for text in texts
        ]
        assert max(batch.num_bytes for batch in each) < 2100


def test_input_parquet_starts_no_thread_that_a_fork_would_lose(tmp_path: Path) -> None:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc")
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "in.parquet")
    # What importing starts (a memory allocator's own thread) knows how to live on in a forked process.
    code = (
        "import sys, os; from pathlib import Path; import pyarrow.parquet; "
        "from megatron_ds.data.records import read_parquet; before = os.listdir('/proc/self/task'); "
        "list(read_parquet(Path(sys.argv[1]), ['text'], 1000)); print(before == os.listdir('/proc/self/task'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "in.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
