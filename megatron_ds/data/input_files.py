"""The files that ``megatron-ds preprocess`` reads: which they are, what is in them, and how they are opened."""

from __future__ import annotations

import glob
import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from backports import zstd

from megatron_ds.data.compression import OPENERS, looks_compressed
from megatron_ds.errors import ConfigError, DataError, Problem
from megatron_ds.utils.logging import logger

# What is in a file, by its suffix. Other suffixes are read as JSON lines; "hf", a dataset, has to be asked for.
FORMATS = ("jsonl", "text", "csv", "tsv", "parquet", "hf")
_FORMAT_OF_SUFFIX = {".txt": "text", ".text": "text", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_REFUSED = (".zip", ".tar", ".tgz", ".7z", ".rar")


@dataclass(frozen=True)
class InputFile:
    """One file of the input.

    Attributes:
        path: the file; for the format ``hf`` a folder, or a name on the hub.
        format: one of `FORMATS`.
        span: the first byte that is meant, at the start of a line, and the one behind the last; None: the whole file.
    """

    path: Path
    format: str
    span: tuple[int, int] | None = None

    @property
    def is_packed(self) -> bool:
        """Whether the file has fewer bytes than its text, or how many it has is not known."""
        return self.format in ("parquet", "hf") or self.path.suffix.lower() in OPENERS

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    @property
    def can_be_cut(self) -> bool:
        """Whether a part of it can be read: JSON lines that are not packed."""
        return self.format == "jsonl" and not self.is_packed

    def line_start(self, place: int) -> int:
        """Where the next line after byte number `place` starts; the end of the file when there is none."""
        with self.path.open("rb") as file:
            file.seek(place)
            file.readline()
            return file.tell()


def find_inputs(names: Sequence[str], input_format: str | None) -> list[InputFile]:
    """The files that are meant, in the order given; those of a pattern in the order of their names.

    Args:
        names: files, or patterns with ``*``, ``?``, ``[…]`` or ``**``; for ``hf`` folders or names on the hub.
        input_format: one of `FORMATS` for all files, or None: by suffix, before that of a compression.

    Raises:
        ConfigError: names every file that does not exist or can't be read in its format.
    """
    files: list[InputFile] = []
    problems: list[Problem] = []
    for name in names:
        try:
            paths = _dataset(name) if input_format == "hf" else _expand(name)
        except OSError as error:
            # A folder that can't be searched, a name that is too long.
            paths = Problem(f"--input {name} can't be looked for: {error}", advice="check --input and permissions")
        if isinstance(paths, Problem):
            problems.append(paths)
            continue
        for path in paths:
            file = InputFile(path, input_format or _format_of(path))
            problem = _refusal(file)
            if problem is None:
                files.append(file)
            else:
                problems.append(problem)
    if problems:
        raise ConfigError(problems)
    if len(set(files)) < len(files):
        repeated = next(file for number, file in enumerate(files) if file in files[:number])
        logger.warning("%s is named more than once in --input, and is read as often", repeated.path)
    return files


def _dataset(name: str) -> list[Path] | Problem:
    path = Path(name)
    if path.is_file():
        return Problem(f"--input {name} is a file, not a dataset", advice="leave --input-format hf out")
    # A name on the hub is `name` or `owner/name`.
    if path.is_dir() or not (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        return [path]
    return Problem(f"dataset folder not found: {name}", advice="check --input")


def _expand(name: str) -> list[Path] | Problem:
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        return Problem(
            f"--input {name} is a folder",
            advice=f"name its files, for instance '{path}/*.jsonl', or give --input-format hf for a dataset",
        )
    if path.exists():
        return Problem(
            f"--input {name} is {_kind(path)}, which can't be read: only files can, as their size has to be known",
            advice="write its content to a file first",
        )
    if not any(letter in name for letter in "*?["):
        return Problem(f"input file not found: {name}", advice="check --input")
    found = sorted(Path(each) for each in glob.glob(name, recursive=True))  # noqa: PTH207 (absolute patterns)
    if files := [each for each in found if each.is_file()]:
        return files
    # What may not be read matches nothing, without an error.
    folder = next(each for each in path.parents if not any(letter in str(each) for letter in "*?["))
    if folder.is_dir():
        next(folder.iterdir(), None)
    return Problem(f"no file matches --input {name}")


def _kind(path: Path) -> str:
    """What something is that is neither a file nor a folder."""
    kinds = {
        "a pipe": path.is_fifo,
        "a device": lambda: path.is_char_device() or path.is_block_device(),
        "a socket": path.is_socket,
    }
    return next((kind for kind, is_it in kinds.items() if is_it()), "no file")


def _format_of(path: Path) -> str:
    inner = Path(path.stem) if path.suffix.lower() in OPENERS else path
    return _FORMAT_OF_SUFFIX.get(inner.suffix.lower(), "jsonl")


def _refusal(file: InputFile) -> Problem | None:
    suffix = file.path.suffix.lower()
    if suffix in _REFUSED:
        known = ", ".join(OPENERS)
        return Problem(
            f"{file.path} can't be read: {suffix} files are not supported", advice=f"unpack it, or use {known}"
        )
    if file.format == "parquet" and suffix in OPENERS:
        return Problem(f"{file.path} can't be read: Parquet compresses its columns itself", advice="unpack it first")
    return None


def damaged_input(path: Path, what: str) -> Problem:
    """The problem of an input file that can't be read to its end."""
    return Problem(f"{path} {what}", advice="copy or download it again; nothing was written")


@contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading bytes, unpacked when its suffix is that of a compression.

    Raises:
        DataError: the file is compressed and its suffix doesn't say so; or, while reading: it is damaged.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        with open_plain(path) as file:
            yield file
        return
    try:
        with opener(path) as unpacked:
            # Lines are found by the buffer, in C; the unpacked file itself would look for them in Python.
            yield cast(BinaryIO, io.BufferedReader(unpacked, 1 << 16))
    except (EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        raise DataError(damaged_input(path, f"is damaged: {error}")) from None
    except OSError as error:
        # Those of the operating system have a number; those of gzip and bz2 have none.
        if error.errno is not None:
            raise
        raise DataError(damaged_input(path, f"is damaged, or not a {path.suffix} file: {error}")) from None


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that is not packed for reading bytes.

    Raises:
        DataError: it starts like a compressed file.
    """
    with path.open("rb") as file:
        if found := looks_compressed(file.peek(16)):
            name, suffix = found
            raise DataError(Problem(f"{path} looks like {name}", advice=f"give it the suffix {suffix}"))
        yield file
