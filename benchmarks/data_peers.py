"""What others do for the work of ``megatron-ds preprocess``: each a whole process that writes the same ``.bin``.

    python benchmarks/data_peers.py PEER CORPUS.jsonl VOCAB MERGES OUT.bin

Started by benchmarks/data.py. A document is the text of a line; blank ones are left out, and each ends with
``<|endoftext|>``. Ids are written as uint16.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

END_OF_TEXT = "<|endoftext|>"
DOCUMENTS_AT_A_TIME = 64


@dataclass(frozen=True)
class Files:
    """What a peer reads and writes.

    Attributes:
        corpus: JSON lines.
        vocab: GPT-2's ``vocab.json`` or ``encoder.json``.
        merges: GPT-2's ``merges.txt`` or ``vocab.bpe``.
        out: the ``.bin``.
    """

    corpus: Path
    vocab: Path
    merges: Path
    out: Path

    def texts(self) -> Iterator[str]:
        """The documents."""
        with self.corpus.open(encoding="utf-8") as file:
            for line in file:
                text = json.loads(line)["text"]
                if text and not text.isspace():
                    yield text

    def eod_id(self) -> int:
        """The id of the end of a document."""
        eod_id: int = json.loads(self.vocab.read_text(encoding="utf-8"))[END_OF_TEXT]
        return eod_id


def tokenizers_loop(files: Files) -> None:
    """The `tokenizers` library in two processes, a batch API call for each group of documents."""
    eod_id = files.eod_id()
    with multiprocessing.Pool(2, _start_tokenizers, (files,)) as pool, files.out.open("wb") as out:
        for documents in pool.imap(_encode_with_tokenizers, _grouped(files.texts())):
            _write(out, documents, eod_id)


_tokenizers: list[Any] = []


def _start_tokenizers(files: Files) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(files.vocab), str(files.merges)))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    _tokenizers[:] = [backend]


def _encode_with_tokenizers(texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in _tokenizers[0].encode_batch_fast(texts)]


def tiktoken_threads(files: Files) -> None:
    """Tiktoken in two threads, as its own batch API works."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    ranks = data_gym_to_mergeable_bpe_ranks(str(files.merges), str(files.vocab))
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    eod_id = files.eod_id()
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: eod_id}, explicit_n_vocab=50257
    )
    with files.out.open("wb") as out:
        for texts in _grouped(files.texts()):
            _write(out, encoding.encode_ordinary_batch(texts, num_threads=2), eod_id)


def gigatoken_alone(files: Files) -> None:
    """Gigatoken in this process, its threads as it likes."""
    import gigatoken
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(files.vocab), str(files.merges)))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder = gigatoken.Tokenizer.from_json(backend.to_str())
    eod_id = files.eod_id()
    with files.out.open("wb") as out:
        for texts in _grouped(files.texts()):
            _write(out, encoder.encode_batch(texts), eod_id)


def _grouped(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while group := list(itertools.islice(iterator, DOCUMENTS_AT_A_TIME)):
        yield group


def _write(out: BinaryIO, documents: Iterable[Any], eod_id: int) -> None:
    for ids in documents:
        out.write(np.asarray(ids, dtype=np.uint16).tobytes())
        out.write(np.uint16(eod_id).tobytes())


PEERS: dict[str, tuple[str, Callable[[Files], None]]] = {
    "tokenizers": ("tokenizers", tokenizers_loop),
    "tiktoken": ("tiktoken", tiktoken_threads),
    "gigatoken": ("gigatoken", gigatoken_alone),
}


if __name__ == "__main__":
    PEERS[sys.argv[1]][1](Files(*map(Path, sys.argv[2:6])))
