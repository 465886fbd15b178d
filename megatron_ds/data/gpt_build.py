"""GPT's samples as a kind of samples, and the data sets of a GPT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.build import Datasets, build_datasets
from megatron_ds.data.data_path import SPLITS
from megatron_ds.data.gpt_dataset import GptDataset
from megatron_ds.data.gpt_index import GptIndex, build_gpt_index, epochs_needed
from megatron_ds.data.index_cache import Arrays, IndexKey
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.sample_kind import PlannedPart, extent, no_documents, without_validation
from megatron_ds.data.samples import SampleCounts
from megatron_ds.data.sources import Blend
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.text import counted

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig

GptDatasets: TypeAlias = Datasets[NDArray[np.int64]]


@dataclass(frozen=True)
class GptSamples:
    """Samples of `seq_length` + 1 tokens over documents laid end to end; see `SampleKind`."""

    seq_length: int
    arrays: tuple[str, ...] = ("documents", "samples")

    def too_small(self, blend: Blend, indexed: Mapping[str, IndexedDataset]) -> list[Problem]:
        """One problem for each part that has no more tokens than a sample's inputs."""
        problems = []
        for part in blend.parts:
            (first, end), num_tokens = extent(part, indexed[part.prefix])
            if num_tokens > self.seq_length:
                continue
            num_documents = indexed[part.prefix].num_documents
            if first == end and num_documents:
                problems.append(no_documents(blend, part, num_documents))
                continue
            where = f"{part.start:.4g}:{part.end:.4g} of {part.prefix}"
            message = (
                f"dataset has {counted(num_tokens, 'token')}, needs at least {self.seq_length + 1}: the {blend} set "
                f"({where}) is shorter than one sample of seq_length {self.seq_length} + 1 tokens"
            )
            advice = "use more data, a smaller --seq-length, or a larger share of it" + without_validation(blend)
            problems.append(Problem(message, advice=advice))
        return problems

    def options(self, num_tokens: int, num_samples: int) -> tuple[str | int | float | bool, ...]:
        """The length of samples and the number of whole epochs."""
        return "gpt", self.seq_length, epochs_needed(num_tokens, self.seq_length, num_samples)

    def build(self, part: PlannedPart, key: IndexKey) -> Arrays:
        """The order of documents and the start of each sample."""
        num_epochs = epochs_needed(part.num_tokens, self.seq_length, part.num_samples)
        try:
            index = build_gpt_index(
                part.indexed.document_lengths(*part.documents),
                first_document=part.documents[0],
                seq_length=self.seq_length,
                num_epochs=num_epochs,
                seed=key.seed,
                split_number=SPLITS.index(key.split),
            )
        except MemoryError:
            raise DataError(
                Problem(
                    f"there is not enough memory for the sample index of {key.prefix} ({key.split}): "
                    f"{counted(num_epochs, 'epoch')} of {counted(part.num_documents, 'document')} and "
                    f"{counted(part.num_tokens // self.seq_length, 'sample')}",
                    advice="train for fewer steps: they are indexed at once, 16 bytes for each sample",
                )
            ) from None
        return {"documents": index.document_order, "samples": index.sample_starts}

    def open(self, part: PlannedPart, key: IndexKey, arrays: Arrays) -> GptDataset:  # noqa: ARG002
        """The samples of a part."""
        index = GptIndex(arrays["documents"], arrays["samples"])
        return GptDataset(part.indexed, index, seq_length=self.seq_length, num_samples=part.num_samples)

    def num_epochs(self, part: PlannedPart, arrays: Arrays) -> float:  # noqa: ARG002
        """The samples' inputs over the documents' tokens."""
        return part.num_samples * self.seq_length / part.num_tokens


def build_gpt_datasets(
    data: DataConfig,
    *,
    seq_length: int,
    seed: int,
    samples: SampleCounts,
    is_builder: bool,
    wait: Callable[[], None],
) -> GptDatasets:
    """The data sets of a GPT; see `build_datasets`.

    Args:
        data: the data options. `check_data` has found no problem in them.
        seq_length: input tokens per sample.
        seed: seed of the order of documents and samples.
        samples: samples needed per set.
        is_builder: whether this process writes missing indices: one process of each node.
        wait: waits for all processes. Each calls it exactly once, the builders when their indices are written.

    Raises:
        ConfigError: the data options are malformed.
        DataError: a file is missing or broken, a set is too small, or the cache can't be written or seen.
    """
    return build_datasets(data, GptSamples(seq_length), seed=seed, samples=samples, is_builder=is_builder, wait=wait)
