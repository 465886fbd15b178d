"""From the data options to the data sets of a run, whatever kind of samples they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from megatron_ds.data.blend_order import BlendOrder
from megatron_ds.data.blended_dataset import BlendedDataset
from megatron_ds.data.index_cache import IndexCache, IndexKey, cache_folder
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.plan_table import log_missing_sets, plan_table
from megatron_ds.data.sample_kind import PlannedBlend, PlannedPart, SampleKind, extent
from megatron_ds.data.samples import DatasetOf, SampleCounts
from megatron_ds.data.shuffled_dataset import ShuffledDataset
from megatron_ds.data.sources import Blend, parse_sources
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig

SampleT = TypeVar("SampleT")


@dataclass(frozen=True)
class Datasets(Generic[SampleT]):
    """The data sets of a run.

    Attributes:
        train: training samples; None where none are needed.
        valid: validation sets by name.
        test: test sets by name.
    """

    train: DatasetOf[SampleT] | None = None
    valid: Mapping[str, DatasetOf[SampleT]] = field(default_factory=dict)
    test: Mapping[str, DatasetOf[SampleT]] = field(default_factory=dict)


def build_datasets(
    data: DataConfig,
    kind: SampleKind[SampleT],
    *,
    seed: int,
    samples: SampleCounts,
    is_builder: bool,
    wait: Callable[[], None],
) -> Datasets[SampleT]:
    """Opens the data and builds, or maps from the cache, the index of every set.

    Args:
        data: the data options. A check has found no problem in them.
        kind: the kind of samples.
        seed: seed of the order of documents and samples.
        samples: samples needed per set.
        is_builder: whether this process writes missing indices: one process of each node.
        wait: waits for all processes. Each calls it exactly once, the builders when their indices are written.

    Raises:
        ConfigError: the data options are malformed.
        DataError: a file is missing or broken, a set is too small, or the cache can't be written or seen.
    """
    plans = plan_datasets(data, kind, seed=seed, samples=samples)
    cache = data.data_cache_path
    if is_builder:
        build_indices(plans, kind, cache)
    wait()
    log_plans(plans, kind, data, samples)
    built = [(plan.blend, _open(plan, kind, cache)) for plan in plans]
    train = next((dataset for blend, dataset in built if blend.split == "train"), None)
    if train is not None and data.dataloader_type == "cyclic":
        train = ShuffledDataset(train, seed)
    return Datasets(
        train=train,
        valid={blend.name: dataset for blend, dataset in built if blend.split == "valid"},
        test={blend.name: dataset for blend, dataset in built if blend.split == "test"},
    )


def plan_datasets(
    data: DataConfig, kind: SampleKind[SampleT], *, seed: int, samples: SampleCounts
) -> list[PlannedBlend]:
    """What `build_datasets` will build, for the same arguments, from the index files alone.

    Raises:
        ConfigError: the data options are malformed.
        DataError: a file is missing or broken, or a set is too small.
    """
    blends = [blend for blend in parse_sources(data) if samples.of(blend.split)]
    indexed = {part.prefix: IndexedDataset(part.prefix) for blend in blends for part in blend.parts}
    return [
        _plan(blend, indexed, kind, seed, samples.of(blend.split))
        for blend in blends
        if not (blend.may_be_missing and kind.too_small(blend, indexed))
    ]


def _plan(
    blend: Blend, indexed: Mapping[str, IndexedDataset], kind: SampleKind[SampleT], seed: int, num_samples: int
) -> PlannedBlend:
    problems = kind.too_small(blend, indexed)
    if problems:
        raise DataError(problems)
    order = BlendOrder([part.weight for part in blend.parts])
    total = sum(part.weight for part in blend.parts)
    planned = []
    for part, count in zip(blend.parts, order.counts(num_samples), strict=True):
        documents, num_tokens = extent(part, indexed[part.prefix])
        key = None
        if count:
            options = kind.options(num_tokens, count)
            key = IndexKey(part.prefix, blend.split, documents, seed, kind.arrays, options)
        share = float(part.weight / total)
        planned.append(PlannedPart(part, indexed[part.prefix], key, share, documents, num_tokens, count))
    return PlannedBlend(blend, num_samples, order, tuple(planned))


def build_indices(plans: Iterable[PlannedBlend], kind: SampleKind[SampleT], cache_path: str | None) -> int:
    """Builds the indices that are not in the cache.

    Args:
        plans: the sets.
        kind: the kind of samples.
        cache_path: ``--data-cache-path``.

    Returns:
        How many were built.

    Raises:
        DataError: the cache can't be written.
    """
    num_built = 0
    for part in (part for plan in plans for part in plan.parts):
        key = part.key
        if key is None:
            continue
        cache = IndexCache(cache_folder(key.prefix, cache_path))
        if cache.load(key, verify=True) is None:
            logger.info(
                "building the sample index of %s (%s: %s, %s)",
                key.prefix,
                key.split,
                counted(part.num_documents, "document"),
                counted(part.num_samples, "sample"),
            )
            cache.store(key, kind.build(part, key))
            num_built += 1
    return num_built


def _open(plan: PlannedBlend, kind: SampleKind[SampleT], cache_path: str | None) -> DatasetOf[SampleT]:
    datasets = [_open_part(part, kind, cache_path) for part in plan.parts]
    if len(datasets) == 1 and datasets[0] is not None:
        return datasets[0]
    return BlendedDataset(datasets, plan.order, plan.num_samples)


def _open_part(part: PlannedPart, kind: SampleKind[SampleT], cache_path: str | None) -> DatasetOf[SampleT] | None:
    key = part.key
    if key is None:
        return None
    cache = IndexCache(cache_folder(key.prefix, cache_path))
    arrays = cache.load(key)
    if arrays is None:
        raise DataError(
            Problem(
                f"the sample index of {key.prefix} ({key.split}) is not in {cache.folder}",
                advice="one process of each node builds it: give a --data-cache-path that all processes of a node see",
            )
        )
    return kind.open(part, key, arrays)


def log_plans(
    plans: Sequence[PlannedBlend], kind: SampleKind[SampleT], data: DataConfig, samples: SampleCounts
) -> None:
    """Prints the table of sets, whose indices are built, and what is missing in it.

    Args:
        plans: the sets.
        kind: the kind of samples.
        data: the data options.
        samples: samples needed per set.
    """

    def num_epochs(part: PlannedPart) -> float:
        key = part.key
        arrays = IndexCache(cache_folder(key.prefix, data.data_cache_path)).load(key) if key else None
        return kind.num_epochs(part, arrays) if arrays is not None else 0.0

    for line in plan_table(plans, num_epochs):
        logger.info(line)
    log_missing_sets(plans, parse_sources(data), samples)
