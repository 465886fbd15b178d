"""Prefixes of samples: drawn by sample number, the same at every layout and after a resume."""

from __future__ import annotations

import torch

from benchmarks.tiny_run import Case
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data.batch import Batch
from megatron_ds.mpu import ModelParallelUnit, Topology
from megatron_ds.training.batches import rank_batches, with_prefixes

LENGTH = 16


class _Numbered:
    """Samples in which every token is the sample's number."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> object:
        return torch.full((LENGTH + 1,), index).numpy()


def _run(dp: int, micro_batch_size: int) -> RunConfig:
    return Case(dp=dp, micro_batch_size=micro_batch_size, more=("--prefix-lm",)).resolve().run


def _prefixes(dp: int, micro_batch_size: int, consumed_samples: int) -> dict[int, tuple[int, int]]:
    """Length of the prefix and number of labels that count, by sample."""
    found = {}
    for rank in range(dp):
        mpu = ModelParallelUnit.offline(Topology(dp_size=dp), global_rank=rank)
        run = _run(dp, micro_batch_size)
        steps = rank_batches(run, _Numbered(), mpu, consumed_samples=consumed_samples)  # type: ignore[arg-type]
        for _ in range((48 - consumed_samples) // run.global_batch_size):
            for batch in next(steps):
                assert batch.document_ids is not None
                for row, tokens in enumerate(batch.tokens):
                    ids = batch.document_ids[row]
                    found[int(tokens[0])] = (int((ids == 0).sum()), int(batch.loss_mask[row].sum()))
    return found


def test_prefix_of_a_sample_is_the_same_at_every_layout_and_after_a_resume() -> None:
    whole = _prefixes(1, 4, 0)
    assert sorted(whole) == list(range(48))
    assert _prefixes(2, 2, 0) == whole
    assert _prefixes(2, 1, 16) == {sample: found for sample, found in whole.items() if sample >= 16}
    lengths = [length for length, _ in whole.values()]
    assert len(set(lengths)) > 10
    assert 0 <= min(lengths) < max(lengths) < LENGTH


def test_labels_inside_a_prefix_do_not_count_and_the_first_after_it_does() -> None:
    batch = Batch(torch.zeros(40, LENGTH, dtype=torch.int64), torch.zeros(40, LENGTH), torch.ones(40, LENGTH))
    batch.loss_mask[:, 12] = 0.0  # what did not count before still doesn't
    found = with_prefixes(batch, range(100, 140), 1234)
    assert found.document_ids is not None
    assert found.document_ids.dtype == torch.int32
    for row in range(40):
        length = int((found.document_ids[row] == 0).sum())
        assert found.document_ids[row].tolist() == [0] * length + [1] * (LENGTH - length)
        counts = [float(place + 1 >= length and place != 12) for place in range(LENGTH)]
        assert found.loss_mask[row].tolist() == counts


def test_prefixes_depend_on_the_seed() -> None:
    batch = Batch(torch.zeros(8, LENGTH, dtype=torch.int64), torch.zeros(8, LENGTH), torch.ones(8, LENGTH))
    one, same, other = (with_prefixes(batch, range(8), seed).document_ids for seed in (1, 1, 2))
    assert one is not None
    assert same is not None
    assert other is not None
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_run_without_prefixes_has_no_ids() -> None:
    run = Case(micro_batch_size=4).resolve().run
    batches = rank_batches(run, _Numbered(), ModelParallelUnit.offline(), consumed_samples=0)  # type: ignore[arg-type]
    assert all(batch.document_ids is None for batch in next(batches))
