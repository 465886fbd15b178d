from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.data import indexed_dataset
from megatron_ds.data.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron_ds.data.indexed_format import byte_pointers, token_dtype
from megatron_ds.errors import DataError
from tests.data.conftest import write_documents


def test_builder_writes_the_bytes_of_megatrons_format(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[7, 8, 9], [], [65535]], np.uint16)
    assert Path(f"{prefix}.bin").read_bytes() == struct.pack("<4H", 7, 8, 9, 65535)
    assert Path(f"{prefix}.idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 3, 4)
        + struct.pack("<3i", 3, 0, 1)
        + struct.pack("<3q", 0, 6, 6)
        + struct.pack("<4q", 0, 1, 2, 3)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.float32, np.float64])
def test_reader_returns_what_was_written(tmp_path: Path, dtype: type) -> None:
    prefix = str(tmp_path / "a")
    documents = [np.array([1, 2, 3], dtype=dtype), np.array([4], dtype=dtype)]
    with IndexedDatasetBuilder(prefix, dtype) as builder:
        for document in documents:
            builder.add_document(document)
    indexed = IndexedDataset(prefix)
    assert indexed.dtype == dtype
    assert (len(indexed), indexed.num_documents, indexed.num_tokens) == (2, 2, 4)
    for sequence, document in enumerate(documents):
        np.testing.assert_array_equal(indexed[sequence], document)


def test_reader_code_7_of_older_forks_is_float64(tmp_path: Path) -> None:
    write_documents(tmp_path / "a", [[1, 2, 3]], np.int64)
    idx = tmp_path / "a.idx"
    content = bytearray(idx.read_bytes())
    content[17] = 7
    idx.write_bytes(content)
    assert IndexedDataset(str(tmp_path / "a")).dtype == np.float64


def test_reader_document_of_several_sequences_is_one_document(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[1, 2], [3], [4, 5, 6]])
    idx = tmp_path / "a.idx"
    content = bytearray(idx.read_bytes())
    # Documents: sequences 0 and 1, nothing, sequence 2.
    idx.write_bytes(content[: -4 * 8] + struct.pack("<4q", 0, 2, 2, 3))
    indexed = IndexedDataset(prefix)
    assert indexed.num_documents == 3
    assert indexed.document_lengths(0, 3).tolist() == [3, 0, 3]
    assert [indexed.document_start(document) for document in range(4)] == [0, 3, 3, 6]


def test_builder_after_an_exception_leaves_nothing_new(tmp_path: Path) -> None:
    write_documents(tmp_path / "a", [[1]])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError), IndexedDatasetBuilder(str(tmp_path / "a"), np.int32) as builder:
        builder.add_document(np.array([2, 3]))
        raise RuntimeError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(257, "uint16"), (65536, "uint16"), (65537, "int32"), (70000, "int32")]
)
def test_token_dtype_holds_every_id(vocab_size: int, dtype: str) -> None:
    """D6: the last id of the vocabulary is representable, and no byte is wasted."""
    assert token_dtype(vocab_size) == dtype
    assert np.array([vocab_size - 1]).astype(token_dtype(vocab_size))[0] == vocab_size - 1


@pytest.mark.parametrize("token", [65536, -1])
def test_builder_id_beyond_the_dtype_refused(tmp_path: Path, token: int) -> None:
    with (
        pytest.raises(DataError, match=f"token id {token} does not fit into uint16"),
        IndexedDatasetBuilder(str(tmp_path / "a"), np.uint16) as builder,
    ):
        builder.add_document(np.array([0, token]))
    assert list(tmp_path.iterdir()) == []


def test_byte_pointers_beyond_2_gib_are_exact() -> None:
    """D4: 3 million sequences of 1000 tokens of 4 bytes, 12 GB."""
    sizes = np.full(3_000_000, 1000, dtype=np.int32)
    pointers = byte_pointers(sizes, 4)
    np.testing.assert_array_equal(pointers, (np.cumsum(sizes, dtype=np.int64) - 1000) * 4)
    assert pointers[-1] == 2_999_999 * 4000


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_reader_broken_files_are_named(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", [[1, 2, 3], [4]])
    idx, bin_file = tmp_path / "a.idx", tmp_path / "a.bin"
    whole = idx.read_bytes()

    def message() -> str:
        with pytest.raises(DataError) as error:
            IndexedDataset(prefix)
        return str(error.value)

    cut(bin_file, 12)
    assert f"{bin_file} is truncated: 12 bytes, expected 16" in message()
    bin_file.write_bytes(bytes(20))
    assert f"{bin_file} is longer than its .idx says: 20 bytes, expected 16" in message()
    bin_file.write_bytes(bytes(16))
    for content, expected in (
        (whole[:-1], f"is truncated: {len(whole) - 1} bytes, expected {len(whole)}"),
        (whole[:20], "is truncated: 20 bytes, its header alone has 34"),
        (whole + b"\0", "is longer than its header says"),
        (b"XNTIDX\x00\x00" + whole[8:], "is not a Megatron index"),
        (b"TNTIDX\x00\x00" + whole[8:], "of the older `lazy` and `cached` implementations"),
        (whole + b"\0\0", "of a multimodal data set"),
        (whole[:9] + struct.pack("<Q", 2) + whole[17:], "has version 2"),
        (whole[:17] + b"\x09" + whole[18:], "has dtype code 9"),
        (whole[:-8] + struct.pack("<q", 1), "does not cover its sequences"),
        (whole[:50] + struct.pack("<q", -4) + whole[58:], "byte pointers that do not match"),
    ):
        idx.write_bytes(content)
        assert str(idx) in message()
        assert expected in message()
    idx.unlink()
    assert f"data file not found: {idx}" in message()


def damaged(tmp_path: Path, position: int, entry: bytes) -> str:
    """The prefix of 4 sequences in 4 documents, with other bytes at a position of the .idx."""
    prefix = write_documents(tmp_path / "a", [[1, 2, 3], [4], [], [5, 6]])
    idx = Path(f"{prefix}.idx")
    content = bytearray(idx.read_bytes())
    content[position : position + len(entry)] = entry
    idx.write_bytes(content)
    return prefix


SIZES, POINTERS, DOCUMENTS = 34, 34 + 4 * 4, 34 + 4 * 4 + 4 * 8


@pytest.mark.parametrize("entries", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize(
    ("position", "entry", "message"),
    [
        (SIZES + 4, struct.pack("<i", -1), "has -1 tokens for sequence 1"),
        # The sum of all sizes stays as it was.
        (SIZES + 4, struct.pack("<2i", -1, 2), "has -1 tokens for sequence 1"),
        (SIZES, struct.pack("<2i", 2, 2), "has byte pointer 12 for sequence 1; its sizes add up to 8"),
        (POINTERS + 8, struct.pack("<q", 8), "has byte pointer 8 for sequence 1; its sizes add up to 12"),
        (POINTERS + 16, struct.pack("<q", -1), "has byte pointer -1 for sequence 2; its sizes add up to 16"),
        (DOCUMENTS + 8, struct.pack("<2q", 3, 2), "has document 1 from sequence 3 to 2; its document index goes back"),
        (DOCUMENTS + 8, struct.pack("<q", -1), "has document 0 from sequence 0 to -1; its document index goes back"),
        (DOCUMENTS + 24, struct.pack("<q", 5), "has document 2 from sequence 2 to 5; it has 4 sequences"),
        (DOCUMENTS + 24, struct.pack("<q", 2**62), f"has document 2 from sequence 2 to {2**62}; it has 4 sequences"),
    ],
)
def test_check_index_names_the_first_wrong_entry(
    tmp_path: Path, entries: int, position: int, entry: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_dataset, "INDEX_ENTRIES", entries)
    prefix = damaged(tmp_path, position, entry)
    with pytest.raises(DataError) as error:
        IndexedDataset(prefix).check_index()
    assert f"{prefix}.idx {message}" in str(error.value)


@pytest.mark.parametrize("entries", [1, 2, 3, 1 << 20])
def test_check_index_accepts_what_the_builder_writes(
    tmp_path: Path, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_dataset, "INDEX_ENTRIES", entries)
    for documents in ([], [[]], [[1, 2, 3], [4], [], [5, 6]]):
        IndexedDataset(write_documents(tmp_path / "a", documents)).check_index()


def test_reader_pickles_as_its_prefix(tmp_path: Path) -> None:
    indexed = IndexedDataset(write_documents(tmp_path / "a", [list(range(5000))]))
    content = pickle.dumps(indexed)
    assert len(content) < 500
    np.testing.assert_array_equal(pickle.loads(content).tokens, indexed.tokens)


@pytest.mark.parametrize("entries", [1, 2, 1 << 20])
def test_builder_documents_of_several_sequences_and_of_one(
    tmp_path: Path, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_dataset, "INDEX_ENTRIES", entries)
    with IndexedDatasetBuilder(str(tmp_path / "a"), np.uint16) as builder:
        builder.add_documents(np.arange(6), np.array([1, 2, 3]), np.array([2, 1]))
        builder.add_documents(np.arange(6, 8), np.array([1, 1]))
        builder.add_documents(np.arange(8, 11), np.array([3]), np.array([1]))
        assert (builder.num_documents, builder.num_tokens) == (5, 11)
    indexed = IndexedDataset(str(tmp_path / "a"))
    indexed.check_index()
    assert indexed.sizes.tolist() == [1, 2, 3, 1, 1, 3]
    assert indexed.pointers.tolist() == [0, 2, 6, 12, 14, 16]
    assert indexed.document_index.tolist() == [0, 2, 3, 4, 5, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]
