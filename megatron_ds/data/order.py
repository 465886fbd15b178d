"""What the order of training samples depends on: saved with a checkpoint, compared when a run goes on from it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.sample_kind import extent
from megatron_ds.data.sources import parse_sources

if TYPE_CHECKING:
    from megatron_ds.config.blocks import RunConfig


# Tokens that are looked at: so many pieces of so many.
_PIECES, _PIECE = 64, 1024
_NAMES = {"num_samples": "train_iters x global_batch_size (cyclic shuffles all samples of the run)"}


@dataclass(frozen=True)
class OrderedPart:
    """One part of the training blend. Without its folder: data may be moved between two starts of a run.

    Attributes:
        name: of its files, without folder and suffix.
        share: of the samples, as its weight says, rounded to nine digits.
        documents: first document, and one past the last.
        num_tokens: tokens in these.
        digest: hash of the lengths of these documents (BERT: and of their sentences), and of some of their tokens.
    """

    name: str
    share: float
    documents: tuple[int, int]
    num_tokens: int
    digest: str

    def __str__(self) -> str:
        first, end = self.documents
        return f"{self.share:.4%} of {self.name} {first}:{end} ({self.num_tokens} tokens, {self.digest[:8]})"


def _digest(indexed: IndexedDataset, documents: tuple[int, int], *, by_sentence: bool) -> str:
    """SHA-1 of the lengths of all documents of a range, or of their sentences, and of tokens at places all over it."""
    first, end = (indexed.document_start(document) for document in documents)
    digest = hashlib.sha1(indexed.document_lengths(*documents).tobytes(), usedforsecurity=False)
    if by_sentence:
        digest.update(np.diff(indexed.document_index[documents[0] : documents[1] + 1]).tobytes())
        digest.update(indexed.sizes[slice(*indexed.document_index[list(documents)])].tobytes())
    for start in np.linspace(first, max(first, end - _PIECE), _PIECES).astype(np.int64).tolist():
        digest.update(indexed.tokens[start : min(end, start + _PIECE)].tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class TrainingOrder:
    """Runs in which this is equal train on the same samples in the same order.

    Attributes:
        parts: of the training blend.
        seq_length: input tokens per sample.
        seed: of the order.
        dataloader_type: ``single`` or ``cyclic``.
        num_samples: samples of the whole run, where the order depends on that: with ``cyclic``.
        sampling: how BERT's samples are made; empty for GPT.
    """

    parts: tuple[OrderedPart, ...]
    seq_length: int
    seed: int
    dataloader_type: str
    num_samples: int | None
    # Checkpoints of earlier versions have none.
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunConfig) -> TrainingOrder:
        """The order of a run. Reads the headers of its token files.

        Raises:
            ConfigError: the data options are malformed.
            DataError: a file is missing or broken.
        """
        train = next(blend for blend in parse_sources(run.data) if blend.split == "train")
        total = sum(part.weight for part in train.parts)
        bert = BertSampling.of_run(run)
        parts = []
        for part in train.parts:
            indexed = IndexedDataset(part.prefix)
            documents, num_tokens = extent(part, indexed)
            share = round(float(part.weight / total), 9)
            digest = _digest(indexed, documents, by_sentence=bert is not None)
            parts.append(OrderedPart(Path(part.prefix).name, share, documents, num_tokens, digest))
        kind = run.data.dataloader_type
        num_samples = run.training.train_iters * run.global_batch_size if kind == "cyclic" else None
        sampling = bert.to_json() if bert is not None else {}
        return cls(tuple(parts), run.model.seq_length, run.training.seed, kind, num_samples, sampling)

    def to_json(self) -> dict[str, Any]:
        """The values as JSON has them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TrainingOrder:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError: something is missing.
        """
        parts = tuple(
            OrderedPart(**{**part, "documents": (part["documents"][0], part["documents"][1])})
            for part in content["parts"]
        )
        return cls(**{**content, "parts": parts})

    def changes(self, now: TrainingOrder) -> list[str]:
        """What is different in `now`, a line for each; empty when it is the same order."""
        before_values, now_values = ({**each.to_json(), **each.sampling} for each in (self, now))
        lines = [
            f"{_NAMES.get(name, name)}: {before_values.get(name)} -> {now_values.get(name)}"
            for name in {**before_values, **now_values}
            if name not in ("parts", "sampling") and before_values.get(name) != now_values.get(name)
        ]
        if self.parts != now.parts:
            lines.append(f"data: {', '.join(map(str, self.parts))} -> {', '.join(map(str, now.parts))}")
        return lines
