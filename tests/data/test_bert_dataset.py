from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_ds.data import bert_build
from megatron_ds.data.bert_batch import BertBatch, make_bert_batch
from megatron_ds.data.bert_samples import BertSample, cut_to_fit, split_in_two
from megatron_ds.data.draws import Draws
from megatron_ds.data.loader import global_batches
from megatron_ds.errors import DataError
from tests.data.bert import KNOWN, build_bert, numbered_sentences, write_sentences

LENGTHS = [[5, 9, 4, 7, 3], [12, 2], [6] * 9, [1, 1, 30], [8, 0, 9, 10]] * 4


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return write_sentences(tmp_path / "a_sentence", numbered_sentences(LENGTHS))


def values(sample: BertSample) -> tuple[Any, ...]:
    """All of a sample, to be compared."""
    arrays = (sample.tokens, sample.token_types, sample.padding_mask, sample.labels, sample.loss_mask)
    return (*(array.tolist() for array in arrays), sample.sop_label)


def segments(sample: BertSample) -> list[list[int]]:
    """The text of a sample before any token was masked."""
    text = sample.labels[sample.padding_mask == 1].tolist()
    assert text[0] == KNOWN.cls_id and text[-1] == KNOWN.sep_id
    second = text.index(KNOWN.sep_id)
    return [part for part in (text[1:second], text[second + 1 : -1]) if part]


@pytest.mark.parametrize("binary_head", [True, False])
def test_sample_arrays_belong_together(prefix: str, binary_head: bool) -> None:
    for sample in build_bert(prefix, train=60, binary_head=binary_head).train:
        num_tokens = int(sample.padding_mask.sum())
        parts = segments(sample)
        assert len(parts) == (2 if binary_head else 1)
        assert num_tokens == sum(map(len, parts)) + 1 + len(parts) <= 32
        first = len(parts[0]) + 2
        assert sample.token_types.tolist() == [0] * first + [1] * (num_tokens - first) + [0] * (32 - num_tokens)
        assert (sample.labels[num_tokens:] == KNOWN.pad_id).all()
        assert (sample.tokens == sample.labels)[sample.loss_mask == 0].all()
        assert sample.loss_mask.sum() == max(1, round(0.15 * num_tokens))
        assert not np.isin(sample.labels[sample.loss_mask == 1], KNOWN.special_ids).any()
        assert (sample.sop_label is not None) == binary_head


def test_sample_segments_meet_at_the_border_of_two_sentences(prefix: str) -> None:
    """Without short samples and with room for all, both segments are whole sentences that follow each other."""
    documents = numbered_sentences(LENGTHS)
    ends = {sentence[-1] for document in documents for sentence in document if sentence}
    starts = {sentence[0] for document in documents for sentence in document if sentence}
    for sample in build_bert(prefix, train=40, seq_length=128, short_seq_prob=0.0).train:
        first, second = segments(sample)[:: -1 if sample.sop_label else 1]
        assert first[-1] in ends and second[0] in starts and second[0] == first[-1] + 1
        assert (np.diff(first + second) == 1).all()
        assert any(
            set(first + second) == {token for sentence in document for token in sentence} for document in documents
        )


def test_sample_epoch_uses_every_document_and_every_token(prefix: str) -> None:
    documents = numbered_sentences(LENGTHS)
    train = build_bert(prefix, train=3 * len(LENGTHS), seq_length=128, short_seq_prob=0.0).train
    for epoch in range(3):
        samples = [train[number] for number in range(epoch * len(LENGTHS), (epoch + 1) * len(LENGTHS))]
        used = [token for sample in samples for part in segments(sample) for token in part]
        assert sorted(used) == [token for document in documents for sentence in document for token in sentence]


def test_sample_epochs_have_other_masks_and_orders(prefix: str) -> None:
    train = build_bert(prefix, train=2 * len(LENGTHS), seq_length=128, short_seq_prob=0.0).train
    by_text: dict[int, list[BertSample]] = {}
    for sample in train:
        by_text.setdefault(min(min(part) for part in segments(sample)), []).append(sample)
    assert {len(pair) for pair in by_text.values()} == {2}
    assert sum(a.sop_label != b.sop_label for a, b in by_text.values()) > 2
    assert sum(a.loss_mask.tolist() != b.loss_mask.tolist() for a, b in by_text.values()) > 15


def test_sample_masks_of_one_document_do_not_repeat(tmp_path: Path) -> None:
    """Each epoch is one sample: 300 draws of 6 from 41 tokens, of which hardly two are the same."""
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[20, 21]]))
    train = build_bert(prefix, train=300, seq_length=64, short_seq_prob=0.0, mask_type="token").train
    assert len({tuple(sample.labels[sample.loss_mask == 1]) for sample in train}) > 295


def test_split_in_two_swaps_half_and_uses_every_border() -> None:
    """4000 draws, within five standard deviations."""
    sentences = [np.array([number]) for number in range(5)]
    drawn = [split_in_two(sentences, 10, Draws(seed)) for seed in range(4000)]
    assert abs(sum(each.is_swapped for each in drawn) - 2000) < 5 * np.sqrt(1000)
    borders: Counter[int] = Counter()
    for each in drawn:
        assert each.second is not None
        assert (each.second[0] == 0) == each.is_swapped
        borders[len(each.second if each.is_swapped else each.first)] += 1
    assert set(borders) == {1, 2, 3, 4}
    assert max(abs(count - 1000) for count in borders.values()) < 5 * np.sqrt(4000 * 0.25 * 0.75)


def reference_lengths(first: int, second: int, most: int) -> list[int]:
    while first + second > most:
        if first > second:
            first -= 1
        else:
            second -= 1
    return [first, second]


def test_cut_to_fit_equals_the_reference() -> None:
    for first in range(1, 12):
        for second in range(1, 12):
            for most in range(2, 24):
                parts = cut_to_fit([np.arange(first), np.arange(second)], most, Draws(first, second, most))
                assert [len(part) for part in parts] == reference_lengths(first, second, most)
                assert all((np.diff(part) == 1).all() for part in parts)


def test_cut_to_fit_cuts_front_and_end_alike() -> None:
    """2000 draws of 90 coins each."""
    fronts = [int(cut_to_fit([np.arange(100)], 10, Draws(seed))[0][0]) for seed in range(2000)]
    assert abs(np.mean(fronts) - 45) < 5 * np.sqrt(90 / 4 / 2000)
    assert np.std(fronts) == pytest.approx(np.sqrt(90 / 4), rel=0.1)


def test_sample_longer_than_its_number_of_tokens_is_cut(tmp_path: Path) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[100, 50]]))
    for sample in build_bert(prefix, train=20, short_seq_prob=0.0).train:
        assert sample.padding_mask.all()
        assert sorted(map(len, segments(sample))) == [14, 15]
    lengths = [int(sample.padding_mask.sum()) for sample in build_bert(prefix, train=300, short_seq_prob=1.0).train]
    assert set(lengths) == set(range(5, 33))


def test_dataset_does_not_depend_on_the_number_of_samples_but_on_the_seed(prefix: str) -> None:
    longer = [values(sample) for sample in build_bert(prefix, train=120).train]
    assert [values(sample) for sample in build_bert(prefix, train=50).train] == longer[:50]
    assert [values(sample) for sample in build_bert(prefix, train=50, seed=1).train] != longer[:50]


def test_dataset_first_sample_stays_the_same(tmp_path: Path) -> None:
    """Whatever changes these numbers changes the data of every run that goes on."""
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[3, 4, 5], [2, 6]]))
    (sample,) = build_bert(prefix, train=1, seq_length=20).train
    text = [2, *range(13, 22), 3, 10, 11, 12, 3]
    assert values(sample) == (
        [2, 4, *range(14, 22), 3, 4, 11, 12, 3, *[0] * 5],
        [0] * 11 + [1] * 4 + [0] * 5,
        [1] * 15 + [0] * 5,
        text + [0] * 5,
        [int(place in (1, 11)) for place in range(20)],
        1,
    )


def test_dataset_splits_and_blends_draw_as_asked(tmp_path: Path) -> None:
    documents = numbered_sentences([[4, 4]] * 100)
    a = write_sentences(tmp_path / "a", documents[:50])
    b = write_sentences(tmp_path / "b", documents[50:])
    datasets = build_bert("1", a, "3", b, split="8,2,0", train=80, valid=20, short_seq_prob=0.0)

    def used(samples: Any) -> list[int]:
        return [(min(min(part) for part in segments(sample)) - 10) // 8 for sample in samples]

    train, valid = used(datasets.train), used(datasets.valid["all"])
    assert sum(number < 50 for number in train) == 20
    assert sum(number < 50 for number in valid) == 5
    assert {number for number in train if number >= 50} == set(range(50, 90))
    assert {number for number in train if number < 50} <= set(range(40))
    assert set(valid) <= {*range(40, 50), *range(90, 100)}
    cyclic = build_bert("1", a, "3", b, split="8,2,0", train=80, short_seq_prob=0.0, cyclic=True).train
    assert sorted(used(cyclic)) == sorted(train) and used(cyclic) != train


def test_cache_is_reused_and_depends_on_the_options(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"{prefix}_cache")
    build_bert(prefix, train=10)
    seen = {path.name for path in folder.iterdir()}
    assert len(seen) == 3
    for options in ({"train": 11}, {"seq_length": 33}, {"short_seq_prob": 0.2}, {"binary_head": False}, {"seed": 1}):
        build_bert(prefix, **{"train": 10, **options})
        now = {path.name for path in folder.iterdir()}
        assert len(now - seen) == 3
        seen = now
    monkeypatch.setattr(bert_build, "build_bert_index", lambda *args, **options: pytest.fail("built again"))
    # What is masked is drawn when a sample is made.
    build_bert(prefix, train=10, mask_prob=0.3, mask_type="token")


def test_cache_damaged_index_is_built_again(prefix: str) -> None:
    expected = [values(sample) for sample in build_bert(prefix, train=10).train]
    (path,) = Path(f"{prefix}_cache").glob("*_samples.npy")
    np.save(path, np.load(path) * 0)
    assert [values(sample) for sample in build_bert(prefix, train=10).train] == expected


def test_build_without_the_builder_maps_the_index(prefix: str) -> None:
    with pytest.raises(DataError, match="is not in"):
        build_bert(prefix, train=10, is_builder=False)
    expected = [values(sample) for sample in build_bert(prefix, train=10).train]
    assert [values(sample) for sample in build_bert(prefix, train=10, is_builder=False).train] == expected


def test_build_logs_whole_and_begun_epochs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prefix = write_sentences(tmp_path / "a", numbered_sentences([[4, 4]] * 10))
    with caplog.at_level("INFO", "megatron_ds"):
        build_bert(prefix, train=25, short_seq_prob=0.0)
    assert caplog.messages[-1].split() == ["train", "10", "80", "100.00%", "25", "100.00%", "2.50", prefix]


def test_origin_names_the_document(tmp_path: Path) -> None:
    documents = numbered_sentences([[4, 4], [], [5, 5, 5]])
    train = build_bert(write_sentences(tmp_path / "a", documents), train=4, short_seq_prob=0.0).train
    for number in range(4):
        (piece,) = train.origin(number).pieces
        tokens = [token for sentence in documents[piece.document] for token in sentence]
        assert (piece.first_token, piece.tokens) == (0, len(tokens))
        assert sorted(token for part in segments(train[number]) for token in part) == tokens


def batches(dataset: Any, dp_rank: int = 0, dp_size: int = 1, consumed: int = 0, workers: int = 0) -> list[BertBatch]:
    steps = global_batches(
        dataset,
        make_bert_batch,
        consumed_samples=consumed,
        micro_batch_size=2,
        global_batch_size=8,
        dp_rank=dp_rank,
        dp_size=dp_size,
        num_workers=workers,
    )
    return [batch for step in islice(steps, (len(dataset) - consumed) // 8) for batch in step]


def tokens_of(found: list[BertBatch]) -> list[list[int]]:
    return torch.cat([batch.tokens for batch in found]).tolist()


def test_batches_are_the_same_for_workers_layouts_and_resumed_runs(prefix: str) -> None:
    train = build_bert(prefix, train=48).train
    whole = tokens_of(batches(train))
    assert whole == [sample.tokens.tolist() for sample in train]
    assert tokens_of(batches(train, workers=2)) == whole
    assert tokens_of(batches(train, consumed=24)) == whole[24:]
    ranks = [batches(train, dp_rank=rank, dp_size=2) for rank in range(2)]
    assert tokens_of([batch for pair in zip(*ranks, strict=True) for batch in pair]) == whole


@pytest.mark.parametrize("binary_head", [True, False])
def test_make_bert_batch_stacks_samples(prefix: str, binary_head: bool) -> None:
    samples = list(islice(build_bert(prefix, train=3, binary_head=binary_head).train, 3))
    batch = make_bert_batch(samples, vocab_size=KNOWN.vocab_size)
    for name in ("tokens", "token_types", "padding_mask", "labels", "loss_mask"):
        tensor = getattr(batch, name)
        assert tensor.tolist() == [getattr(sample, name).tolist() for sample in samples]
        assert tensor.dtype == (torch.float32 if name == "loss_mask" else torch.int64)
    if binary_head:
        assert batch.sop_labels is not None
        assert batch.sop_labels.tolist() == [sample.sop_label for sample in samples]
    else:
        assert batch.sop_labels is None
    assert batch.to("meta").labels.device.type == "meta"


def test_make_bert_batch_with_a_token_that_is_no_id_raises(prefix: str) -> None:
    samples = list(build_bert(prefix, train=3).train)
    with pytest.raises(DataError, match="outside of the vocabulary of 12 ids"):
        make_bert_batch(samples, vocab_size=12)
