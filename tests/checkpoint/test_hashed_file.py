"""A file that is written and hashed at once is the one that a reader finds, and its errors are the disk's."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from pathlib import Path

import pytest

from megatron_ds.checkpoint.hashed_file import FileRecord, HashedFile, replace_text

# Small pieces are hashed at once, large ones by a thread.
PIECES = [b"a", random.Random(0).randbytes(3 * 2**20 + 1), b"", b"bc" * 1000, random.Random(1).randbytes(2**20)]


def _sample(content: bytes) -> str:
    length, middle = 2**16, (len(content) - 2**16) // 2
    pieces = content[:length], content[middle : middle + length], content[-length:]
    return hashlib.sha256(b"".join(pieces)).hexdigest()


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_record_is_that_of_the_file_on_disk(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with HashedFile(path) as file:
        assert [file.write(kind(piece)) for piece in PIECES] == [len(piece) for piece in PIECES]
        record = file.complete()
    content = b"".join(PIECES)
    assert path.read_bytes() == content
    assert record == FileRecord(len(content), hashlib.sha256(content).hexdigest(), _sample(content))


@pytest.mark.parametrize("size", [1, 2**23], ids=["small", "large"])
def test_full_disk_is_an_error_with_its_number(size: int) -> None:
    with pytest.raises(OSError) as caught, HashedFile(Path("/dev/full")) as file:
        file.write(bytes(size))
        file.complete()
    assert caught.value.errno == errno.ENOSPC


def test_error_of_the_disk_comes_through_one_that_a_writer_makes_of_it() -> None:
    with pytest.raises(OSError) as caught, HashedFile(Path("/dev/full")) as file:
        try:
            file.write(bytes(2**23))
        except OSError:
            raise RuntimeError("unexpected pos 64 vs 0") from None
    assert caught.value.errno == errno.ENOSPC


def test_text_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    replace_text(path, "global_step1")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "global_step2")
    assert path.read_text() == "global_step1"
    assert [file.name for file in tmp_path.iterdir()] == ["latest"]
