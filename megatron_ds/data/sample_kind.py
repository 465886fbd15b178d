"""What distinguishes one kind of samples (GPT's, BERT's) from another while data sets are planned and built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from megatron_ds.data.blend_order import BlendOrder
from megatron_ds.data.data_path import BlendPart
from megatron_ds.data.index_cache import Arrays, IndexKey
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.samples import DatasetOf
from megatron_ds.data.sources import Blend
from megatron_ds.errors import Problem

SampleT_co = TypeVar("SampleT_co", covariant=True)


@dataclass(frozen=True)
class PlannedPart:
    """What one set takes from one pair of files.

    Attributes:
        part: its range of documents and its weight.
        indexed: the files.
        key: what its index depends on; None where no sample is drawn.
        share: its share of the set's samples, as its weight says.
        documents: first document of its range, and one past the last.
        num_tokens: tokens in these.
        num_samples: samples that are drawn from it.
    """

    part: BlendPart
    indexed: IndexedDataset
    key: IndexKey | None
    share: float
    documents: tuple[int, int]
    num_tokens: int
    num_samples: int

    @property
    def num_documents(self) -> int:
        """Documents in its range."""
        return self.documents[1] - self.documents[0]


@dataclass(frozen=True)
class PlannedBlend:
    """How one training, validation or test set is made."""

    blend: Blend
    num_samples: int
    order: BlendOrder
    parts: tuple[PlannedPart, ...]


class SampleKind(Protocol[SampleT_co]):
    """A kind of samples, with the options that say how they are made."""

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays of an index."""

    def too_small(self, blend: Blend, indexed: Mapping[str, IndexedDataset]) -> list[Problem]:
        """One problem for each part of a set that has less than one sample.

        Args:
            blend: the set.
            indexed: the files of its parts, by prefix.
        """

    def options(self, num_tokens: int, num_samples: int) -> tuple[str | int | float | bool, ...]:
        """What an index depends on beside the documents and the seed.

        Args:
            num_tokens: tokens in its documents.
            num_samples: samples that are drawn, at least 1.
        """

    def build(self, part: PlannedPart, key: IndexKey) -> Arrays:
        """The index of a part.

        Raises:
            DataError: there is not enough memory.
        """

    def open(self, part: PlannedPart, key: IndexKey, arrays: Arrays) -> DatasetOf[SampleT_co]:
        """The samples of a part with its index."""

    def num_epochs(self, part: PlannedPart, arrays: Arrays) -> float:
        """How many times the documents of a part are gone through, which draws at least one sample."""


def extent(part: BlendPart, indexed: IndexedDataset) -> tuple[tuple[int, int], int]:
    """The documents of a part (first, and one past the last), and the tokens in them."""
    first, end = part.documents(indexed.num_documents)
    return (first, end), indexed.document_start(end) - indexed.document_start(first)


def no_documents(blend: Blend, part: BlendPart, num_documents: int) -> Problem:
    """The problem of a part whose share of the documents is none of them."""
    return Problem(
        f"the {blend} set has none of the {num_documents} documents of {part.prefix}",
        advice=f"it is the share {part.start:.4g}:{part.end:.4g}: give it a larger one, or use more documents"
        + without_validation(blend),
    )


def without_validation(blend: Blend) -> str:
    """The end of an advice: how to do without a set of evaluation."""
    return ", or set --eval-iters 0" if blend.split == "valid" else ""
