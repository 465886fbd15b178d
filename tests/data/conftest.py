"""Small token files and the options that read them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data import GptDatasets, SampleCounts, build_gpt_datasets
from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder


def write_documents(prefix: Path, documents: Sequence[Sequence[int]], dtype: type = np.int32) -> str:
    """Writes one document per list of ids; returns the prefix."""
    with IndexedDatasetBuilder(str(prefix), dtype) as builder:
        for document in documents:
            builder.add_document(np.array(document, dtype=np.int64))
    return str(prefix)


def numbered_documents(lengths: Sequence[int]) -> list[list[int]]:
    """Documents in which every token of the corpus has another id, counted from 0."""
    ends = np.cumsum([0, *lengths])
    return [list(range(start, end)) for start, end in pairwise(ends)]


def build(
    *data_path: str,
    split: str = "1,0,0",
    train: int = 0,
    valid: int = 0,
    test: int = 0,
    seq_length: int = 16,
    seed: int = 1234,
    cache: Path | None = None,
    is_builder: bool = True,
    dataloader_type: Literal["single", "cyclic"] = "single",
) -> GptDatasets:
    data = DataConfig(
        data_path=list(data_path),
        split=split,
        data_cache_path=str(cache) if cache else None,
        dataloader_type=dataloader_type,
    )
    return build_gpt_datasets(
        data,
        seq_length=seq_length,
        seed=seed,
        samples=SampleCounts(train, valid, test),
        is_builder=is_builder,
        wait=lambda: None,
    )


def rows(dataset: object) -> list[list[int]]:
    """All samples as lists."""
    assert dataset is not None
    return [sample.tolist() for sample in dataset]  # type: ignore[attr-defined]
