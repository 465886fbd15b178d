"""Real text that every machine has: the sources of Python's standard library, and a small tokenizer trained on them.

    python scripts/quickstart_data.py FOLDER [--sources DIR] [--megabytes N] [--vocab-size N]

writes FOLDER/text.jsonl, one document per source file, and FOLDER/tokenizer.json, a byte-level BPE. More text is in the
packages that are installed: --sources .venv/lib.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

import tokenizers

END_OF_DOCUMENT = "<|endoftext|>"
VOCAB_SIZE = 2048

# Packages that somebody installed are not the standard library.
_INSTALLED = {"site-packages", "dist-packages"}


def python_sources(library: Path, installed: bool = False) -> Iterator[str]:
    """The text of every Python file below `library` that can be read, in an order that is the same on each run.

    The order is shuffled: a split by document then gives validation text of the same kind as the training text, and
    not the modules at the end of the alphabet.

    Args:
        library: a folder, for instance the standard library's.
        installed: whether packages that somebody installed below it count as well.
    """
    paths = sorted(
        path
        for path in library.rglob("*.py")
        if installed or _INSTALLED.isdisjoint(path.relative_to(library).parts[:-1])
    )
    random.Random(0).shuffle(paths)
    for path in paths:
        text = read_source(path)
        if text.strip():
            yield text


def read_source(path: Path) -> str:
    """The text of a Python file in the encoding that it declares; empty where that fails.

    The library's own tests hold files that are broken on purpose.
    """
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""


def write_json_lines(documents: Iterator[str], path: Path) -> tuple[int, int]:
    """Writes one JSON object with a ``text`` per line.

    Args:
        documents: the texts.
        path: the file; it appears when it is whole.

    Returns:
        Number of documents, and of characters in them.
    """
    num_documents = num_characters = 0
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        for text in documents:
            file.write(json.dumps({"text": text}) + "\n")
            num_documents += 1
            num_characters += len(text)
    partial.replace(path)
    return num_documents, num_characters


def first_megabytes(documents: Iterator[str], megabytes: float) -> Iterator[str]:
    """The documents up to the one with which they are that large, in millions of characters."""
    missing = megabytes * 1e6
    for text in documents:
        yield text
        missing -= len(text)
        if missing <= 0:
            return


def read_json_lines(path: Path) -> Iterator[str]:
    """The texts that `write_json_lines` wrote."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def train_tokenizer(documents: Iterator[str], vocab_size: int = VOCAB_SIZE) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE: any text can be encoded, and decoding gives it back exactly.

    Args:
        documents: the texts.
        vocab_size: number of ids, with the 256 bytes and the end-of-document token; at least 257.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def main(folder: Path, sources: Path | None = None, megabytes: float = math.inf, vocab_size: int = VOCAB_SIZE) -> None:
    """Writes text and tokenizer, unless they are there from an earlier start.

    Args:
        folder: for the two files.
        sources: where to look for Python files; the standard library when None.
        megabytes: stop at so much text, in millions of characters.
        vocab_size: ids of the tokenizer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text, vocabulary = folder / "text.jsonl", folder / "tokenizer.json"
    if text.exists():
        print(f"{text}: from an earlier start")
    else:
        library = sources or Path(sysconfig.get_path("stdlib"))
        documents = first_megabytes(python_sources(library, installed=sources is not None), megabytes)
        num_documents, num_characters = write_json_lines(documents, text)
        if num_documents == 0:
            text.unlink()
            sys.exit(f"{library} holds no Python sources: use a Python that has its standard library as .py files")
        print(f"{text}: {num_documents} source files of {library}, {num_characters / 1e6:.1f} million characters")
    if vocabulary.exists():
        print(f"{vocabulary}: from an earlier start")
    else:
        tokenizer = train_tokenizer(read_json_lines(text), vocab_size)
        partial = vocabulary.with_name(vocabulary.name + ".partial")
        tokenizer.save(str(partial))
        partial.replace(vocabulary)
        print(f"{vocabulary}: byte-level BPE of {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", type=Path, help="folder with Python files (the standard library)")
    parser.add_argument("--megabytes", type=float, default=math.inf, help="stop at so much text (all)")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help=f"ids of the tokenizer ({VOCAB_SIZE})")
    main(**vars(parser.parse_args()))
