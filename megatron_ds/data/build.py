"""From the data options to the data sets of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatron_ds.data.blend_order import BlendOrder
from megatron_ds.data.blended_dataset import BlendedDataset
from megatron_ds.data.data_path import SPLITS, BlendPart
from megatron_ds.data.gpt_dataset import GptDataset
from megatron_ds.data.gpt_index import GptIndex, build_gpt_index, epochs_needed
from megatron_ds.data.index_cache import IndexCache, IndexKey, cache_folder
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.samples import SampleCounts, SampleDataset
from megatron_ds.data.shuffled_dataset import ShuffledDataset
from megatron_ds.data.sources import Blend, parse_sources
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig


@dataclass(frozen=True)
class GptDatasets:
    """The data sets of a run.

    Attributes:
        train: training samples; None where none are needed.
        valid: validation sets by name.
        test: test sets by name.
    """

    train: SampleDataset | None = None
    valid: Mapping[str, SampleDataset] = field(default_factory=dict)
    test: Mapping[str, SampleDataset] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedPart:
    """What one set takes from one pair of files.

    Attributes:
        part: its range of documents and its weight.
        indexed: the files.
        key: what its index depends on; None where no sample is drawn.
        share: its share of the set's samples, as its weight says.
        num_documents: documents in its range.
        num_tokens: tokens in these.
        num_samples: samples that are drawn from it.
    """

    part: BlendPart
    indexed: IndexedDataset
    key: IndexKey | None
    share: float
    num_documents: int
    num_tokens: int
    num_samples: int

    @property
    def num_epochs(self) -> float:
        """How many times its documents are gone through."""
        return self.num_samples * self.key.seq_length / self.num_tokens if self.key else 0.0


@dataclass(frozen=True)
class PlannedBlend:
    """How one training, validation or test set is made."""

    blend: Blend
    num_samples: int
    order: BlendOrder
    parts: tuple[PlannedPart, ...]


def build_gpt_datasets(
    data: DataConfig,
    *,
    seq_length: int,
    seed: int,
    samples: SampleCounts,
    is_builder: bool,
    wait: Callable[[], None],
) -> GptDatasets:
    """Opens the data and builds, or maps from the cache, the index of every set.

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
    plans = plan_gpt_datasets(data, seq_length=seq_length, seed=seed, samples=samples)
    cache = data.data_cache_path
    if is_builder:
        build_indices(plans, cache)
    wait()
    log_plans(plans, data, samples)
    built = [(plan.blend, _open(plan, cache)) for plan in plans]
    train = next((dataset for blend, dataset in built if blend.split == "train"), None)
    if train is not None and data.dataloader_type == "cyclic":
        train = ShuffledDataset(train, seed)
    return GptDatasets(
        train=train,
        valid={blend.name: dataset for blend, dataset in built if blend.split == "valid"},
        test={blend.name: dataset for blend, dataset in built if blend.split == "test"},
    )


def plan_gpt_datasets(data: DataConfig, *, seq_length: int, seed: int, samples: SampleCounts) -> list[PlannedBlend]:
    """What `build_gpt_datasets` will build, for the same arguments, from the index files alone.

    Raises:
        ConfigError: the data options are malformed.
        DataError: a file is missing or broken, or a set is too small.
    """
    blends = [blend for blend in parse_sources(data) if samples.of(blend.split)]
    indexed = {part.prefix: IndexedDataset(part.prefix) for blend in blends for part in blend.parts}
    return [
        _plan(blend, indexed, seq_length, seed, samples.of(blend.split))
        for blend in blends
        if not (blend.may_be_missing and too_small(blend, indexed, seq_length))
    ]


def _plan(
    blend: Blend, indexed: Mapping[str, IndexedDataset], seq_length: int, seed: int, num_samples: int
) -> PlannedBlend:
    problems = too_small(blend, indexed, seq_length)
    if problems:
        raise DataError(problems)
    order = BlendOrder([part.weight for part in blend.parts])
    total = sum(part.weight for part in blend.parts)
    planned = []
    for part, count in zip(blend.parts, order.counts(num_samples), strict=True):
        documents, num_tokens = extent(part, indexed[part.prefix])
        key = None
        if count:
            num_epochs = epochs_needed(num_tokens, seq_length, count)
            key = IndexKey(part.prefix, blend.split, documents, seq_length, seed, num_epochs)
        share = float(part.weight / total)
        num_documents = documents[1] - documents[0]
        planned.append(PlannedPart(part, indexed[part.prefix], key, share, num_documents, num_tokens, count))
    return PlannedBlend(blend, num_samples, order, tuple(planned))


def extent(part: BlendPart, indexed: IndexedDataset) -> tuple[tuple[int, int], int]:
    """The documents of a part (first, and one past the last), and the tokens in them."""
    first, end = part.documents(indexed.num_documents)
    return (first, end), indexed.document_start(end) - indexed.document_start(first)


def too_small(blend: Blend, indexed: Mapping[str, IndexedDataset], seq_length: int) -> list[Problem]:
    """One problem for each part of a set that has less than one sample.

    Args:
        blend: the set.
        indexed: the files of its parts, by prefix.
        seq_length: input tokens per sample.
    """
    problems = []
    for part in blend.parts:
        (first, end), num_tokens = extent(part, indexed[part.prefix])
        if num_tokens > seq_length:
            continue
        where = f"{part.start:.4g}:{part.end:.4g} of {part.prefix}"
        num_documents = indexed[part.prefix].num_documents
        if first == end and num_documents:
            message = f"the {blend} set has none of the {counted(num_documents, 'document')} of {part.prefix}"
            advice = f"it is the share {part.start:.4g}:{part.end:.4g}: give it a larger one, or use more documents"
        else:
            message = (
                f"dataset has {counted(num_tokens, 'token')}, needs at least {seq_length + 1}: the {blend} set "
                f"({where}) is shorter than one sample of seq_length {seq_length} + 1 tokens"
            )
            advice = "use more data, a smaller --seq-length, or a larger share of it"
        if blend.split == "valid":
            advice += ", or set --eval-iters 0"
        problems.append(Problem(message, advice=advice))
    return problems


def build_indices(plans: Iterable[PlannedBlend], cache_path: str | None) -> int:
    """Builds the indices that are not in the cache.

    Args:
        plans: the sets.
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
                counted(key.num_epochs, "epoch"),
            )
            cache.store(key, _build(part, key))
            num_built += 1
    return num_built


def _build(part: PlannedPart, key: IndexKey) -> GptIndex:
    try:
        return build_gpt_index(
            part.indexed.document_lengths(*key.documents),
            first_document=key.documents[0],
            seq_length=key.seq_length,
            num_epochs=key.num_epochs,
            seed=key.seed,
            split_number=SPLITS.index(key.split),
        )
    except MemoryError:
        raise DataError(
            Problem(
                f"there is not enough memory for the sample index of {key.prefix} ({key.split}): "
                f"{counted(key.num_epochs, 'epoch')} of {counted(part.num_documents, 'document')} and "
                f"{counted(part.num_tokens // key.seq_length, 'sample')}",
                advice="train for fewer steps: they are indexed at once, 16 bytes for each sample",
            )
        ) from None


def _open(plan: PlannedBlend, cache_path: str | None) -> SampleDataset:
    datasets = [_open_part(part, cache_path) for part in plan.parts]
    if len(datasets) == 1 and datasets[0] is not None:
        return datasets[0]
    return BlendedDataset(datasets, plan.order, plan.num_samples)


def _open_part(part: PlannedPart, cache_path: str | None) -> GptDataset | None:
    key = part.key
    if key is None:
        return None
    cache = IndexCache(cache_folder(key.prefix, cache_path))
    index = cache.load(key)
    if index is None:
        raise DataError(
            Problem(
                f"the sample index of {key.prefix} ({key.split}) is not in {cache.folder}",
                advice="one process of each node builds it: give a --data-cache-path that all processes of a node see",
            )
        )
    return GptDataset(part.indexed, index, seq_length=key.seq_length, num_samples=part.num_samples)


def _with_range(part: BlendPart) -> str:
    is_whole = (part.start, part.end) == (0.0, 1.0)
    return part.prefix if is_whole else f"{part.prefix} {part.start:.4g}:{part.end:.4g}"


def log_plans(plans: Sequence[PlannedBlend], data: DataConfig, samples: SampleCounts) -> None:
    """Prints the table of sets, and what is missing in it.

    Args:
        plans: the sets.
        data: the data options.
        samples: samples needed per set.
    """
    for line in plan_table(plans):
        logger.info(line)
    planned = {str(plan.blend) for plan in plans}
    blends = parse_sources(data)
    if samples.valid and not any(blend.split == "valid" for blend in blends):
        logger.info("there is no validation set: nothing is evaluated during training")
    for blend in blends:
        if samples.of(blend.split) and str(blend) not in planned:
            logger.info("there is no %s set: its share of the documents has less than one sample", blend)


def plan_table(plans: Sequence[PlannedBlend]) -> list[str]:
    """The sets of a run as lines of a table, headings first."""
    rows = [("set", "documents", "tokens", "weight", "samples", "share", "epochs", "data")]
    for plan in plans:
        for part in plan.parts:
            share = part.num_samples / plan.num_samples
            rows.append(
                (
                    str(plan.blend),
                    f"{part.num_documents:,}",
                    f"{part.num_tokens:,}",
                    f"{part.share:.2%}",
                    f"{part.num_samples:,}",
                    f"{share:.2%}",
                    f"{part.num_epochs:.2f}",
                    _with_range(part.part),
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in (0, len(row) - 1) else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
