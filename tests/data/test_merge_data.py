from __future__ import annotations

import logging
import struct
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.cli import merge_data
from megatron_ds.data import indexed_dataset
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.errors import ConfigError, DataError
from tests.data.conftest import write_documents
from tests.data.test_preprocess import run, write_lines

TEXTS = {"a": ["one", "two two"], "b": ["three"], "c": ["four", "", "five five five"]}


def merge(output: Path, *prefixes: object) -> str:
    merge_data.main(["--input", *map(str, prefixes), "--output-prefix", str(output)])
    return str(output)


def contents(prefix: str) -> list[bytes]:
    """The bytes of all files of a pair, the description too where there is one."""
    paths = [Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx", ".json")]
    return [path.read_bytes() for path in paths if path.exists()]


@pytest.mark.parametrize("names", ["a", "ab", "abc", "aa", "cab"])
@pytest.mark.parametrize("entries", [1, 2, 1 << 20])
def test_merge_is_byte_identical_to_preprocessing_the_concatenation(
    tmp_path: Path, names: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7, also where the index is written in several pieces; what the files were made with is merged as well."""
    monkeypatch.setattr(indexed_dataset, "INDEX_ENTRIES", entries)
    for name, texts in TEXTS.items():
        run(write_lines(tmp_path / f"{name}.jsonl", texts), tmp_path / name, "--append-eod")
    together = write_lines(tmp_path / "all.jsonl", [text for name in names for text in TEXTS[name]])
    run(together, tmp_path / "all", "--append-eod")
    merged = merge(tmp_path / "new" / "merged", *(f"{tmp_path / name}_text_document" for name in names))
    assert len(contents(merged)) == 3
    assert contents(merged) == contents(f"{tmp_path / 'all'}_text_document")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["merged.bin", "merged.idx", "merged.json"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 0, 1)])
def test_merge_with_an_empty_set_changes_nothing(tmp_path: Path, order: tuple[int, ...]) -> None:
    """D7: A + empty."""
    sets = [write_documents(tmp_path / "a", [[1, 2], [3]]), write_documents(tmp_path / "empty", [])]
    assert contents(merge(tmp_path / "m", *(sets[each] for each in order))) == contents(sets[0])


def test_merge_keeps_documents_of_several_sequences(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[1, 2], [3], [4, 5, 6]])
    idx = tmp_path / "a.idx"
    idx.write_bytes(idx.read_bytes()[: -4 * 8] + struct.pack("<3q", 0, 2, 3))
    content = bytearray(idx.read_bytes())
    content[26:34] = struct.pack("<Q", 3)
    idx.write_bytes(content)
    merged = IndexedDataset(merge(tmp_path / "m", prefix, prefix))
    merged.check_index()
    assert merged.document_index.tolist() == [0, 2, 3, 5, 6]
    assert merged.document_lengths(0, 4).tolist() == [3, 3, 3, 3]


def test_merge_two_dtypes_refused_naming_both(tmp_path: Path) -> None:
    """D6."""
    small, large = (
        write_documents(tmp_path / name, [[1]], dtype) for name, dtype in (("s", np.uint16), ("l", np.int32))
    )
    with pytest.raises(DataError, match=rf"{small} has uint16 tokens and {large} has int32"):
        merge(tmp_path / "out" / "m", small, small, large)
    assert not (tmp_path / "out").exists()


def test_merge_every_broken_input_is_named_and_nothing_stays(tmp_path: Path) -> None:
    good, cut = (write_documents(tmp_path / name, [[1, 2], [3]]) for name in ("good", "cut"))
    Path(f"{cut}.bin").write_bytes(b"1234")
    with pytest.raises(DataError) as error:
        merge(tmp_path / "out" / "m", good, cut, tmp_path / "missing")
    assert f"{cut}.bin is truncated" in str(error.value)
    assert f"data file not found: {tmp_path / 'missing'}.idx" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_merge_damaged_index_refused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[1, 2], [3], [4]])
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    content[34 + 3 * 4 + 8 : 34 + 3 * 4 + 16] = struct.pack("<q", 4)
    Path(f"{prefix}.idx").write_bytes(content)
    with pytest.raises(DataError, match="byte pointer 4 for sequence 1; its sizes add up to 8"):
        merge(tmp_path / "m", prefix)


def test_merge_output_must_be_a_new_prefix(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[1]])
    before = contents(prefix)
    with pytest.raises(ConfigError, match="is one of the inputs"):
        merge(tmp_path / "x" / ".." / "a", prefix)
    with pytest.raises(ConfigError, match=rf"without the suffix: {prefix}, not {prefix}\.bin"):
        merge(tmp_path / "m", f"{prefix}.bin")
    with pytest.raises(ConfigError, match="is a folder"):
        merge(tmp_path, prefix)
    assert contents(prefix) == before


def test_merge_unwritable_output_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="can't be written"):
        merge(tmp_path / "file" / "m", write_documents(tmp_path / "a", [[1]]))


def test_merge_tells_how_much_it_wrote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "megatron_ds"):
        merge(tmp_path / "m", write_documents(tmp_path / "a", [[1]]))
    assert caplog.messages[-1] == f"{tmp_path / 'm'}: 1 document, 1 token of int32"
