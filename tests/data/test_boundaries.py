from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data.batch import Batch, make_batch
from megatron_ds.data.boundaries import DocumentBoundaries, document_ids
from megatron_ds.data.loader import global_batches
from tests.data.conftest import build, write_documents

EOD = 0
BOTH = DocumentBoundaries(EOD, number_documents=True, mask_loss=True)


def boundaries(**switches: bool) -> DocumentBoundaries | None:
    return DocumentBoundaries.of(DataConfig(eod_id=EOD, **switches))


def test_boundaries_without_a_switch_are_none() -> None:
    assert boundaries() is None


@pytest.mark.parametrize(
    ("switch", "number_documents", "mask_loss"),
    [("reset_position_ids", True, False), ("reset_attention_mask", True, False), ("eod_mask_loss", False, True)],
)
def test_boundaries_of_a_switch_ask_for_what_it_needs(switch: str, number_documents: bool, mask_loss: bool) -> None:
    assert boundaries(**{switch: True}) == DocumentBoundaries(EOD, number_documents, mask_loss)


@pytest.mark.parametrize(
    ("tokens", "ids"),
    [
        ([1, 2, 0, 3, 4, 0, 5], [0, 0, 0, 1, 1, 1, 2]),
        ([0, 1, 2], [0, 1, 1]),
        ([1, 0, 0, 2], [0, 0, 1, 2]),
        ([1, 2, 0], [0, 0, 0]),
        ([1, 2, 3], [0, 0, 0]),
        ([0] * 512, list(range(512))),
    ],
)
def test_document_ids_count_the_eods_before(tokens: list[int], ids: list[int]) -> None:
    found = document_ids(np.array([tokens]) == EOD)
    assert found.dtype == np.int32
    assert found.tolist() == [ids]


def test_document_ids_of_each_sample_begin_with_0() -> None:
    found = document_ids(np.array([[1, 0, 2], [3, 4, 5], [0, 6, 0]]) == EOD)
    assert found.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 1]]


def test_make_batch_masks_the_loss_at_an_eod_and_not_of_an_eod() -> None:
    batch = make_batch([np.array([7, 0, 8, 9, 0])], boundaries=BOTH)
    assert batch.tokens.tolist() == [[7, 0, 8, 9]]
    # The EOD as a label counts: to end a document is what a model has to learn.
    assert batch.labels.tolist() == [[0, 8, 9, 0]]
    assert batch.loss_mask.tolist() == [[1, 0, 1, 1]]
    assert batch.document_ids is not None
    assert batch.document_ids.tolist() == [[0, 0, 1, 1]]
    assert (batch.document_ids.dtype, batch.loss_mask.dtype) == (torch.int32, torch.float32)


@pytest.mark.parametrize("number_documents", [False, True])
@pytest.mark.parametrize("mask_loss", [False, True])
def test_batch_holds_what_was_asked_for_and_nothing_more(number_documents: bool, mask_loss: bool) -> None:
    batch = make_batch([np.array([7, 0, 8])], boundaries=DocumentBoundaries(EOD, number_documents, mask_loss))
    assert (batch.document_ids is not None) is number_documents
    assert batch.loss_mask.tolist() == [[1, 0 if mask_loss else 1]]
    moved = batch.to("meta")
    if number_documents:
        assert moved.document_ids is not None
        assert moved.document_ids.device.type == "meta"
        assert isinstance(batch.inputs, tuple)
        assert batch.inputs == (batch.tokens, batch.document_ids)
    else:
        assert moved.document_ids is None
        assert batch.inputs is batch.tokens


def test_make_batch_of_an_array_is_that_of_its_rows() -> None:
    samples = np.array([[7, 0, 8], [1, 2, 3]])
    ours, theirs = make_batch(samples, boundaries=BOTH), make_batch(list(samples), boundaries=BOTH)
    assert all(torch.equal(vars(ours)[name], vars(theirs)[name]) for name in vars(theirs))


def _batches(folder: Path, workers: int) -> list[Batch]:
    documents = [[*range(1, 1 + length), EOD] for length in (3, 40, 1, 17, 5) * 4]
    dataset = build(write_documents(folder / "a", documents), train=8).train
    assert dataset is not None
    batches = global_batches(
        dataset,
        partial(make_batch, boundaries=BOTH),
        consumed_samples=0,
        micro_batch_size=2,
        global_batch_size=8,
        dp_rank=0,
        dp_size=2,
        num_workers=workers,
    )
    return next(islice(batches, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_hands_document_ids_on(workers: int, tmp_path: Path) -> None:
    batches = _batches(tmp_path, workers)
    assert len(batches) == 2
    for batch in batches:
        assert batch.document_ids is not None
        before = (batch.tokens == EOD).cumsum(1) - (batch.tokens == EOD).long()
        assert batch.document_ids.tolist() == before.tolist()
        assert batch.loss_mask.tolist() == (batch.tokens != EOD).float().tolist()
    assert any((batch.tokens == EOD).any() for batch in batches)
