"""What a pair of token files holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.token_info import TokenInfo, read_token_info

_PERCENTILES = (50, 90, 99)
_BAR_WIDTH = 40
# Tokens that are looked through at a time.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Description:
    """A pair of token files in numbers.

    Attributes:
        prefix: path of the files without suffix.
        dtype: of the tokens.
        num_documents: documents, empty ones included.
        num_sequences: sequences: one a document, or one a sentence.
        num_tokens: tokens.
        smallest_id: of all tokens; None without tokens.
        largest_id: of all tokens; None without tokens.
        num_ids: different ids.
        shortest: tokens of the shortest document; 0 without documents.
        longest: tokens of the longest.
        mean_length: tokens per document.
        percentiles: length that 50, 90 and 99 % of the documents don't exceed, by percentage.
        histogram: documents by length: for each power of two p, from 0 on, those of p to 2p - 1 tokens (0 for none).
        ending_with_eod: documents whose last token is the tokenizer's EOD; None when that is not known.
        info: what the files were made with; None when nothing says so.
    """

    prefix: str
    dtype: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    smallest_id: int | None
    largest_id: int | None
    num_ids: int
    shortest: int
    longest: int
    mean_length: float
    percentiles: dict[int, int]
    histogram: dict[int, int]
    ending_with_eod: int | None
    info: TokenInfo | None

    def to_json(self) -> str:
        """All values as one JSON object on one line."""
        return json.dumps(asdict(self), ensure_ascii=False)


def describe(prefix: str) -> Description:
    """Reads a pair of token files: all of the index, and each token once.

    Args:
        prefix: path of the files without suffix.

    Raises:
        DataError: a file is missing or broken.
    """
    indexed = IndexedDataset(prefix)
    indexed.check_index()
    info = read_token_info(prefix)
    lengths = indexed.document_lengths(0, indexed.num_documents)
    counts = _id_counts(indexed.tokens)
    ids = np.flatnonzero(counts)
    return Description(
        prefix=prefix,
        dtype=str(indexed.dtype),
        num_documents=indexed.num_documents,
        num_sequences=len(indexed),
        num_tokens=indexed.num_tokens,
        smallest_id=int(ids[0]) if len(ids) else None,
        largest_id=int(ids[-1]) if len(ids) else None,
        num_ids=len(ids),
        shortest=int(lengths.min(initial=np.iinfo(np.int64).max)) if len(lengths) else 0,
        longest=int(lengths.max(initial=0)),
        mean_length=float(lengths.mean()) if len(lengths) else 0.0,
        percentiles={share: _percentile(lengths, share) for share in _PERCENTILES},
        histogram=_histogram(lengths),
        ending_with_eod=_ending_with(indexed, lengths, info.eod_id) if info and info.eod_id is not None else None,
        info=info,
    )


def _id_counts(tokens: NDArray[Any]) -> NDArray[np.int64]:
    counts = np.zeros(0, np.int64)
    for first in range(0, len(tokens), _CHUNK):
        # Ids below zero are no ids; the check before a run names them.
        chunk = np.bincount(np.maximum(tokens[first : first + _CHUNK], 0).astype(np.int64))
        counts = np.pad(counts, (0, max(0, len(chunk) - len(counts))))
        counts[: len(chunk)] += chunk
    return counts


def _percentile(lengths: NDArray[np.int64], share: int) -> int:
    return int(np.percentile(lengths, share, method="inverted_cdf")) if len(lengths) else 0


def _histogram(lengths: NDArray[np.int64]) -> dict[int, int]:
    # The exponent e of frexp has 2^(e-1) <= length < 2^e.
    exponents = np.frexp(lengths.astype(np.float64))[1]
    counts = np.bincount(exponents).tolist()
    return {0 if exponent == 0 else 2 ** (exponent - 1): count for exponent, count in enumerate(counts)}


def _ending_with(indexed: IndexedDataset, lengths: NDArray[np.int64], eod_id: int) -> int:
    ends = np.cumsum(lengths)[lengths > 0]
    return int((indexed.tokens[ends - 1] == eod_id).sum())


def report(description: Description) -> str:
    """A description for people."""
    info = description.info
    lines = [
        description.prefix,
        f"  documents    {description.num_documents:,} in {description.num_sequences:,} sequences",
        f"  tokens       {description.num_tokens:,} of {description.dtype}",
        f"  ids          {description.num_ids:,} different, from {description.smallest_id} to {description.largest_id}",
    ]
    if info is None:
        lines.append("  tokenizer    not known: there is no .json beside the files")
    else:
        eod = "no end-of-document id" if info.eod_id is None else f"end of document {info.eod_id}"
        lines.append(
            f"  tokenizer    {info.tokenizer_type}, {info.vocab_size:,} ids, {eod}, fingerprint {info.fingerprint[:12]}"
        )
    if description.ending_with_eod is not None:
        lines.append(f"  ending       {description.ending_with_eod:,} documents end with the end-of-document id")
    shares = ", ".join(f"{share}% up to {length:,}" for share, length in description.percentiles.items())
    extremes = f"{description.shortest:,} to {description.longest:,} tokens, mean {description.mean_length:,.1f}"
    return "\n".join([*lines, f"  length       {extremes}; {shares}", *_bars(description.histogram)])


def _bars(histogram: dict[int, int]) -> list[str]:
    most = max(histogram.values(), default=0)
    filled = {start: count for start, count in histogram.items() if start or count}
    first = next((start for start, count in filled.items() if count), None)
    lines = []
    for start, count in filled.items():
        if first is not None and start >= first:
            name = "0" if start == 0 else f"{start:,}-{2 * start - 1:,}" if start > 1 else "1"
            bar = "█" * max(1, round(_BAR_WIDTH * count / most)) if count else ""
            lines.append(f"  {name:>23}  {count:>12,}  {bar}".rstrip())
    return lines
