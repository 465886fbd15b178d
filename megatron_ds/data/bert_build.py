"""BERT's samples as a kind of samples, and the data sets of a BERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from megatron_ds.data.bert_index import BertIndex, build_bert_index, sentence_counts
from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.bert_samples import BertDataset, BertSample
from megatron_ds.data.build import Datasets, build_datasets
from megatron_ds.data.data_path import SPLITS, BlendPart
from megatron_ds.data.index_cache import Arrays, IndexKey
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.sample_kind import PlannedPart, no_documents, without_validation
from megatron_ds.data.samples import SampleCounts
from megatron_ds.data.sources import Blend
from megatron_ds.errors import DataError, Problem
from megatron_ds.tokenizers.bert_tokens import BertTokens
from megatron_ds.utils.text import counted

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig

BertDatasets: TypeAlias = Datasets[BertSample]


@dataclass(frozen=True)
class BertSamples:
    """Samples of consecutive sentences of a document; see `SampleKind`.

    Attributes:
        sampling: how samples are made.
        known: the tokenizer's special tokens; None while nothing is opened.
    """

    sampling: BertSampling
    known: BertTokens | None = None
    arrays: tuple[str, ...] = ("samples", "epochs")

    def too_small(self, blend: Blend, indexed: Mapping[str, IndexedDataset]) -> list[Problem]:
        """One problem for each part in which no document has enough sentences."""
        problems = []
        for part in blend.parts:
            file = indexed[part.prefix]
            first, end = part.documents(file.num_documents)
            if first == end and file.num_documents:
                problems.append(no_documents(blend, part, file.num_documents))
            elif not self._num_usable(file, first, end):
                problems.append(self._none_usable(blend, part, file))
        return problems

    def _num_usable(self, file: IndexedDataset, first: int, end: int) -> int:
        counts = sentence_counts(file.sizes, file.document_index[first : end + 1])
        return int((counts >= self.sampling.min_sentences).sum())

    def _none_usable(self, blend: Blend, part: BlendPart, file: IndexedDataset) -> Problem:
        first, end = part.documents(file.num_documents)
        where, or_else = f"{part.start:.4g}:{part.end:.4g} of {part.prefix}", without_validation(blend)
        found = f"0 usable of {counted(end - first, 'document')} in the {blend} set ({where})"
        if not self._num_usable(file, 0, file.num_documents):
            # The same for all sets of the file.
            found, or_else = f"0 usable of {counted(file.num_documents, 'document')} of {part.prefix}", ""
        if not self.sampling.binary_head:
            return Problem(f"{found}: none has a token", advice=f"use other data{or_else}")
        return Problem(
            f"{found}: the sentence-order head needs documents of two sentences or more",
            advice="preprocess longer texts, with --split-sentences; or train without that head: "
            f"--bert-no-binary-head{or_else}",
        )

    def options(self, num_tokens: int, num_samples: int) -> tuple[str | int | float | bool, ...]:  # noqa: ARG002
        """What decides where samples begin and end, and how many there are."""
        sampling = self.sampling
        return "bert", sampling.max_tokens, sampling.min_sentences, sampling.short_seq_prob, num_samples

    def build(self, part: PlannedPart, key: IndexKey) -> Arrays:
        """The sentences of each sample, and the ends of epochs."""
        first, end = part.documents
        try:
            index = build_bert_index(
                part.indexed.sizes,
                part.indexed.document_index[first : end + 1],
                max_tokens=self.sampling.max_tokens,
                min_sentences=self.sampling.min_sentences,
                short_seq_prob=self.sampling.short_seq_prob,
                num_samples=part.num_samples,
                seed=key.seed,
                split_number=SPLITS.index(key.split),
            )
        except MemoryError:
            raise DataError(
                Problem(
                    f"there is not enough memory for the sample index of {key.prefix} ({key.split}): "
                    f"{counted(part.num_samples, 'sample')} of {counted(part.num_documents, 'document')}",
                    advice="train for fewer steps: they are indexed at once, 24 bytes for each sample",
                )
            ) from None
        return {"samples": index.samples, "epochs": index.epoch_ends}

    def open(self, part: PlannedPart, key: IndexKey, arrays: Arrays) -> BertDataset:
        """The samples of a part."""
        assert self.known is not None, "samples are made with the tokenizer's special tokens"
        return BertDataset(
            part.indexed,
            BertIndex(arrays["samples"], arrays["epochs"]),
            sampling=self.sampling,
            known=self.known,
            num_samples=part.num_samples,
            seed=key.seed,
            split_number=SPLITS.index(key.split),
        )

    def num_epochs(self, part: PlannedPart, arrays: Arrays) -> float:
        """Whole epochs, and the samples of the last one over all that it has."""
        ends: list[int] = [0, *arrays["epochs"].tolist()]
        last = int(np.searchsorted(ends, part.num_samples, side="left")) - 1
        return last + (part.num_samples - ends[last]) / (ends[last + 1] - ends[last])


def build_bert_datasets(
    data: DataConfig,
    *,
    sampling: BertSampling,
    known: BertTokens,
    seed: int,
    samples: SampleCounts,
    is_builder: bool,
    wait: Callable[[], None],
) -> BertDatasets:
    """The data sets of a BERT; see `build_datasets`.

    Args:
        data: the data options. `check_bert_data` has found no problem in them.
        sampling: how samples are made.
        known: the tokenizer's special tokens.
        seed: seed of the order of samples, and of everything that is drawn for them.
        samples: samples needed per set.
        is_builder: whether this process writes missing indices: one process of each node.
        wait: waits for all processes. Each calls it exactly once, the builders when their indices are written.

    Raises:
        ConfigError: the data options are malformed.
        DataError: a file is missing or broken, a set is too small, or the cache can't be written or seen.
    """
    kind = BertSamples(sampling, known)
    return build_datasets(data, kind, seed=seed, samples=samples, is_builder=is_builder, wait=wait)
