"""From a batch of input to texts: what every input format has in common, and what makes a document bad."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from megatron_ds.errors import DataError, Problem


class BadDocumentError(Exception):
    """A document that can't be used.

    Attributes:
        reason: a few words that are equal for all documents of this kind; they are counted.
        detail: what was found, to be read after the document's place.
    """

    def __init__(self, reason: str, detail: str) -> None:
        # Both, so that it can be passed between processes.
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class DocumentBatch(Protocol):
    """Consecutive documents of the input. Passed to workers, where `document` does the parsing."""

    @property
    def num_bytes(self) -> int:
        """Bytes in all documents."""

    def __len__(self) -> int:
        """Number of documents, blank and bad ones included."""

    def place(self, index: int) -> str:
        """Where a document stands, for messages: a file, and what finds the document in it."""

    def document(self, index: int) -> Mapping[str, object] | None:
        """The document's values by key; None for a blank line.

        Raises:
            BadDocumentError: it can't be read.
        """


@dataclass
class Texts:
    """The texts of a batch.

    Attributes:
        by_key: for each key the texts, in order; a blank line has an empty text.
        bad: documents that were left out, by reason.
        first_bad: place and description of the first of them; empty when there is none.
    """

    by_key: dict[str, list[str]]
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""


def read_texts(
    batch: DocumentBatch,
    keys: Sequence[str],
    *,
    skip_bad: bool,
    fault: Callable[[str], str | None] | None = None,
) -> Texts:
    """The texts of each key in a batch.

    Args:
        batch: the documents.
        keys: the keys that hold texts.
        skip_bad: leave bad documents out, under all keys, and count them.
        fault: says what in a text makes it bad, to be read after "has", or None; without it every text is good.

    Raises:
        DataError: a document is bad and `skip_bad` is false. Names its place.
    """
    texts = Texts({key: [] for key in keys})
    for index in range(len(batch)):
        try:
            document = batch.document(index)
            found = [""] * len(keys) if document is None else [_text(document, key, fault) for key in keys]
        except BadDocumentError as error:
            what = f"{batch.place(index)} {error.detail}"
            if not skip_bad:
                advice = "correct or remove it, or give --skip-bad-lines; nothing was written"
                raise DataError(Problem(what, advice=advice)) from None
            texts.bad[error.reason] += 1
            texts.first_bad = texts.first_bad or what
            continue
        for key, text in zip(keys, found, strict=True):
            texts.by_key[key].append(text)
    return texts


def decode_utf8(text: bytes) -> str:
    """Bytes as text.

    Raises:
        BadDocumentError: they are not UTF-8.
    """
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {text[error.start]:#04x} at position {error.start}"
        raise BadDocumentError("not UTF-8", f"is not UTF-8: {found}") from None


def _text(document: Mapping[str, object], key: str, fault: Callable[[str], str | None] | None) -> str:
    if key not in document:
        has = ", ".join(map(repr, document)) or "none"
        raise BadDocumentError(f"no key {key!r}", f"has no key {key!r}; it has {has}")
    text = document[key]
    if text is None:
        raise BadDocumentError(f"null under {key!r}", f"has null under {key!r} where a text belongs")
    if not isinstance(text, str):
        found = f"has a value of type {type(text).__name__} under {key!r} where a text belongs"
        raise BadDocumentError(f"no text under {key!r}", found)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair (\\u{ord(text[error.start]):04x})"
        raise BadDocumentError("half of a surrogate pair", f"has {half} under {key!r}, which is no text") from None
    if fault is not None and (found_in_text := fault(text)) is not None:
        raise BadDocumentError(f"not token ids under {key!r}", f"has {found_in_text}, under {key!r}")
    return text
