"""From the data options to the data sets of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatron_ds.data.blend_order import BlendOrder
from megatron_ds.data.blended_dataset import BlendedDataset
from megatron_ds.data.data_path import SPLITS, WeightedPrefix, document_ranges, parse_data_path, parse_split
from megatron_ds.data.gpt_dataset import GptDataset
from megatron_ds.data.gpt_index import build_gpt_index, epochs_needed
from megatron_ds.data.index_cache import IndexCache, IndexKey, cache_folder
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.samples import SampleCounts
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.logging import logger

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig


@dataclass(frozen=True)
class GptDatasets:
    """The data sets of a run; None for a split from which no samples are needed."""

    train: GptDataset | BlendedDataset | None
    valid: GptDataset | BlendedDataset | None
    test: GptDataset | BlendedDataset | None


@dataclass(frozen=True)
class _Part:
    """One data set's share of one split."""

    indexed: IndexedDataset
    key: IndexKey
    cache: IndexCache
    num_samples: int
    num_tokens: int


@dataclass(frozen=True)
class _SplitPlan:
    """How one split is made: a part per set that is drawn from, else None."""

    split: str
    num_samples: int
    order: BlendOrder
    parts: tuple[_Part | None, ...]


def build_gpt_datasets(
    data: DataConfig,
    *,
    seq_length: int,
    seed: int,
    samples: SampleCounts,
    is_builder: bool,
    wait: Callable[[], None],
) -> GptDatasets:
    """Opens the data and builds, or maps from the cache, the index of every split.

    Args:
        data: data path, split and cache folder. `check_data` has found no problem in them.
        seq_length: input tokens per sample.
        seed: seed of the order of documents and samples.
        samples: samples needed per split.
        is_builder: whether this process writes missing indices: one process of each node.
        wait: a barrier over all processes. Each calls it exactly once, the builders when their indices are written.

    Raises:
        ConfigError: the data path or the split is malformed.
        DataError: a file is missing or broken, a split is too small, or the cache can't be written or seen.
    """
    prefixes = parse_data_path(data.data_path)
    indexed = {each.prefix: IndexedDataset(each.prefix) for each in prefixes}
    wanted = [split for split in SPLITS if samples.of(split)]
    plans = [
        _plan(data, split, prefixes, indexed, seq_length=seq_length, seed=seed, num_samples=samples.of(split))
        for split in wanted
    ]
    if is_builder:
        for part in (part for plan in plans for part in plan.parts if part):
            _build_missing(part)
    wait()
    for plan in plans:
        _log_plan(plan, prefixes)
    built = {plan.split: _open(plan) for plan in plans}
    return GptDatasets(*(built.get(split) for split in SPLITS))


def _plan(
    data: DataConfig,
    split: str,
    prefixes: tuple[WeightedPrefix, ...],
    indexed: dict[str, IndexedDataset],
    *,
    seq_length: int,
    seed: int,
    num_samples: int,
) -> _SplitPlan:
    order = BlendOrder([each.weight for each in prefixes])
    parts = tuple(
        _plan_part(data, split, indexed[each.prefix], seq_length=seq_length, seed=seed, num_samples=count)
        if count
        else None
        for each, count in zip(prefixes, order.counts(num_samples), strict=True)
    )
    return _SplitPlan(split, num_samples, order, parts)


def _plan_part(
    data: DataConfig, split: str, indexed: IndexedDataset, *, seq_length: int, seed: int, num_samples: int
) -> _Part:
    first, end = document_ranges(parse_split(data.split), indexed.num_documents)[split]
    num_tokens = indexed.document_start(end) - indexed.document_start(first)
    if num_tokens <= seq_length:
        raise DataError(too_small(indexed.prefix, split, num_tokens, seq_length, data.split))
    num_epochs = epochs_needed(num_tokens, seq_length, num_samples)
    key = IndexKey(indexed.prefix, split, data.split, (first, end), seq_length, seed, num_epochs)
    return _Part(indexed, key, IndexCache(cache_folder(indexed.prefix, data.data_cache_path)), num_samples, num_tokens)


def too_small(prefix: str, split: str, num_tokens: int, seq_length: int, split_text: str) -> Problem:
    """The problem of a split with less than one sample."""
    return Problem(
        f"dataset has {num_tokens} tokens, needs at least {seq_length + 1}: the {split} split of {prefix} is shorter "
        f"than one sample of seq_length {seq_length} + 1 tokens",
        advice=f"use more data, a smaller --seq-length, or a larger share in --split (now {split_text})",
    )


def _build_missing(part: _Part) -> None:
    if part.cache.load(part.key) is not None:
        return
    key = part.key
    index = build_gpt_index(
        part.indexed.document_lengths(*key.documents),
        first_document=key.documents[0],
        seq_length=key.seq_length,
        num_epochs=key.num_epochs,
        seed=key.seed,
        split_number=SPLITS.index(key.split),
    )
    part.cache.store(key, index)


def _open(plan: _SplitPlan) -> GptDataset | BlendedDataset:
    datasets = [_open_part(part) if part else None for part in plan.parts]
    if len(datasets) == 1 and datasets[0] is not None:
        return datasets[0]
    return BlendedDataset(datasets, plan.order, plan.num_samples)


def _open_part(part: _Part) -> GptDataset:
    index = part.cache.load(part.key)
    if index is None:
        raise DataError(
            Problem(
                f"the sample index of {part.key.prefix} ({part.key.split}) is not in {part.cache.folder}",
                advice="one process of each node builds it: give a --data-cache-path that all processes of a node see",
            )
        )
    return GptDataset(part.indexed, index, seq_length=part.key.seq_length, num_samples=part.num_samples)


def _log_plan(plan: _SplitPlan, prefixes: tuple[WeightedPrefix, ...]) -> None:
    for each, part in zip(prefixes, plan.parts, strict=True):
        count = part.num_samples if part else 0
        epochs = count * part.key.seq_length / part.num_tokens if part else 0.0
        share = count / plan.num_samples
        logger.info("%-5s %s: %d samples, %.2f%%, %.2f epochs", plan.split, each.prefix, count, 100 * share, epochs)
