"""What files of examples are called, and what tells them from others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

_BLOCK = 2**20


def name_of(paths: Sequence[Path]) -> str:
    """The first file's name without its endings, or the folder's."""
    return paths[0].name.partition(".")[0] or paths[0].resolve().name


def digest_of(paths: Sequence[Path]) -> str:
    """SHA-256 of some files, and of all files in folders, in hex."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()
