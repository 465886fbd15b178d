"""The file of a task, read whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

from megatron_ds.errors import DataError, Problem


def read_text(file: Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        DataError: it can't be read, or is empty.
    """
    try:
        text = file.read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(Problem(f"{file} can't be read: {error}", advice="check --valid-data")) from error
    if not text.strip():
        raise DataError(Problem(f"{file} is empty", advice="check --valid-data"))
    return text


def sha256_of(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
