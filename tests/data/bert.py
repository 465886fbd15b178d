"""Small data for BERT: numbered tokens, and what a tokenizer would say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data import BertDatasets, BertSampling, SampleCounts, build_bert_datasets
from megatron_ds.data.indexed_dataset import IndexedDatasetBuilder
from megatron_ds.tokenizers.bert_tokens import BertTokens

VOCAB_SIZE, FIRST_WORD = 4000, 10
# Every third id from the first word on continues a word.
KNOWN = BertTokens(
    cls_id=2,
    sep_id=3,
    mask_id=4,
    pad_id=0,
    special_ids=(0, 1, 2, 3, 4),
    vocab_size=VOCAB_SIZE,
    continues_word=(np.arange(VOCAB_SIZE) >= FIRST_WORD) & (np.arange(VOCAB_SIZE) % 3 == 0),
)
SAMPLING = BertSampling(
    seq_length=32, binary_head=True, mask_prob=0.15, short_seq_prob=0.1, mask_type="ngram", max_ngram=3
)


def write_sentences(prefix: Path, documents: Sequence[Sequence[Sequence[int]]]) -> str:
    """Writes one sequence per sentence; returns the prefix."""
    with IndexedDatasetBuilder(str(prefix), np.int32) as builder:
        for document in documents:
            tokens = np.array([token for sentence in document for token in sentence], dtype=np.int64)
            lengths = np.array([len(sentence) for sentence in document], dtype=np.int64)
            builder.add_documents(tokens, lengths, np.array([len(document)]))
    return str(prefix)


def numbered_sentences(lengths: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Documents of sentences in which every token of the corpus has another id, counted from `FIRST_WORD`."""
    following = iter(range(FIRST_WORD, VOCAB_SIZE))
    return [[[next(following) for _ in range(length)] for length in document] for document in lengths]


def build_bert(
    *data_path: str,
    train: int = 0,
    valid: int = 0,
    split: str = "1,0,0",
    seed: int = 1234,
    cache: Path | None = None,
    is_builder: bool = True,
    cyclic: bool = False,
    **sampling: Any,
) -> BertDatasets:
    """The data sets of a BERT with `SAMPLING`, or what `sampling` changes of it."""
    data = DataConfig(
        data_path=list(data_path),
        split=split,
        data_cache_path=str(cache) if cache else None,
        dataloader_type="cyclic" if cyclic else "single",
    )
    return build_bert_datasets(
        data,
        sampling=replace(SAMPLING, **sampling),
        known=KNOWN,
        seed=seed,
        samples=SampleCounts(train, valid, 0),
        is_builder=is_builder,
        wait=lambda: None,
    )
