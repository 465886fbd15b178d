from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_ds.data.batch import Batch, make_batch
from megatron_ds.data.loader import global_batches
from megatron_ds.data.samples import batch_hash
from megatron_ds.errors import DataError
from tests.data.conftest import build, numbered_documents, write_documents


@pytest.fixture
def dataset(tmp_path: Path) -> object:
    return build(write_documents(tmp_path / "a", numbered_documents([30] * 22)), train=96).train


def global_hashes(
    dataset: object, dp_size: int, micro_batch_size: int, consumed: int = 0, workers: int = 0, size: int = 8
) -> list[str]:
    """SHA-1 of every global batch of `size`, put together from the micro-batches of all ranks."""
    ranks = [
        global_batches(
            dataset,  # type: ignore[arg-type]
            make_batch,
            consumed_samples=consumed,
            micro_batch_size=micro_batch_size,
            global_batch_size=size,
            dp_rank=rank,
            dp_size=dp_size,
            num_workers=workers,
        )
        for rank in range(dp_size)
    ]
    hashes = []
    for _ in range((len(dataset) - consumed) // size):  # type: ignore[arg-type]
        steps = [next(rank) for rank in ranks]
        assert all(len(step) == size // (dp_size * micro_batch_size) for step in steps)
        batches = [batch for micro in zip(*steps, strict=True) for batch in micro]
        samples = [torch.cat([batch.tokens, batch.labels[:, -1:]], dim=1) for batch in batches]
        hashes.append(batch_hash(np.concatenate([each.numpy() for each in samples])))
    return hashes


def test_make_batch_labels_are_the_following_tokens() -> None:
    batch = make_batch([np.arange(5), np.arange(10, 15)])
    assert batch.tokens.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert batch.labels.tolist() == [[1, 2, 3, 4], [11, 12, 13, 14]]
    assert batch.loss_mask.tolist() == [[1.0] * 4] * 2
    assert (batch.tokens.dtype, batch.loss_mask.dtype) == (torch.int64, torch.float32)
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert moved.labels.device.type == "meta"


@pytest.mark.parametrize(("tokens", "named"), [([0, 5, 9, 10], 10), ([0, -5, 9, 3], -5), ([-1, 99, 0, 0], -1)])
def test_make_batch_with_a_token_that_is_no_id_raises(tokens: list[int], named: int) -> None:
    assert make_batch([np.array([0, 5, 9, 3])], vocab_size=10).tokens.tolist() == [[0, 5, 9]]
    with pytest.raises(DataError, match=f"token id {named}, outside of the vocabulary of 10 ids"):
        make_batch([np.array(tokens)], vocab_size=10)


def test_batch_hash_depends_on_tokens_and_their_order_only() -> None:
    samples = [np.arange(5), np.arange(10, 15)]
    assert batch_hash(samples) == batch_hash([sample.astype(np.int32) for sample in samples])
    assert batch_hash(samples) != batch_hash(samples[::-1])
    assert len(batch_hash(samples)) == 40


@pytest.mark.parametrize(("dp_size", "micro_batch_size"), [(1, 1), (1, 8), (2, 1), (2, 4), (4, 2)])
def test_global_batches_do_not_depend_on_the_layout(dataset: object, dp_size: int, micro_batch_size: int) -> None:
    expected = [batch_hash(dataset[8 * step + place] for place in range(8)) for step in range(12)]  # type: ignore[index]
    assert global_hashes(dataset, dp_size, micro_batch_size) == expected


@pytest.mark.parametrize("steps", [1, 5, 6, 11])
def test_global_batches_after_a_resume_go_on(dataset: object, steps: int) -> None:
    straight = global_hashes(dataset, 2, 2)
    assert global_hashes(dataset, 2, 2, consumed=8 * steps) == straight[steps:]


def test_global_batches_with_workers_are_the_same(dataset: object) -> None:
    assert global_hashes(dataset, 1, 4, workers=2) == global_hashes(dataset, 1, 4)


@pytest.mark.parametrize("kind", ["train", "cyclic", "blend", "valid"])
def test_thirty_batches_are_those_of_any_layout_and_any_stop(tmp_path: Path, kind: str) -> None:
    """D20: 40 samples an epoch, so that three epochs are 30 steps of 4, with borders after steps 10 and 20."""
    a = write_documents(tmp_path / "a", numbered_documents([32] * 20))
    b = write_documents(tmp_path / "b", numbered_documents([48] * 20))
    if kind == "valid":
        dataset = build(a, split="0,1,0", valid=120).valid["all"]
    elif kind == "blend":
        dataset = build("2", a, "1", b, train=120).train
    else:
        dataset = build(a, train=120, dataloader_type="cyclic" if kind == "cyclic" else "single").train
    straight = global_hashes(dataset, 1, 4, size=4)
    assert len(set(straight)) == 30
    for stop in (4, 9, 10, 11, 20):
        assert global_hashes(dataset, 1, 4, size=4, consumed=4 * stop) == straight[stop:]
    for dp_size, micro_batch_size in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1)):
        assert global_hashes(dataset, dp_size, micro_batch_size, size=4) == straight
    # Stopped on one layout, gone on with on another, with workers.
    assert global_hashes(dataset, 2, 1, size=4, workers=2, consumed=40) == straight[10:]


def test_global_batches_beyond_the_end_raise(dataset: object) -> None:
    """P12: four samples are left, and no smaller batch is made of them."""
    batches = global_batches(
        dataset,  # type: ignore[arg-type]
        make_batch,
        consumed_samples=84,
        micro_batch_size=4,
        global_batch_size=8,
        dp_rank=0,
        dp_size=1,
    )
    assert len(list(islice(batches, 1))) == 1
    with pytest.raises(DataError, match="has 96 samples, 92 are used; the next step needs 8 more"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_global_batches_leave_the_random_state_alone(dataset: object, workers: int) -> None:
    """Dropout after a resume would differ otherwise."""
    before = torch.get_rng_state()
    assert len(global_hashes(dataset, 1, 8, workers=workers)) == 12
    assert torch.equal(torch.get_rng_state(), before)
