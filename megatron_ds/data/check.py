"""What is wrong with the data of a run, found from the index files before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_ds.data.build import too_small
from megatron_ds.data.data_path import SPLITS, document_ranges, parse_data_path, parse_split
from megatron_ds.data.indexed_dataset import IndexedDataset, bin_path, idx_path
from megatron_ds.data.samples import SampleCounts
from megatron_ds.errors import MegatronDsError, Problem, Source

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig

# Tokens of each file that are compared with the vocabulary: a few milliseconds of reading.
TOKENS_LOOKED_AT = 1_000_000
# Documents of each file whose last token is looked at.
ENDS_LOOKED_AT = 1_000


@dataclass(frozen=True)
class SplitNeeds:
    """What every data set has to have.

    Attributes:
        text: ``--split`` as given.
        shares: the shares of train, valid and test, or None when `text` is malformed.
        splits: the splits that samples are needed from.
        seq_length: input tokens per sample.
    """

    text: str
    shares: tuple[float, float, float] | None
    splits: list[str]
    seq_length: int


def check_data(
    data: DataConfig, *, seq_length: int, samples: SampleCounts, vocab_size: int | None = None
) -> list[Problem]:
    """All problems of the data options and files.

    Args:
        data: data path and split.
        seq_length: input tokens per sample.
        samples: samples needed per split; a validation or test split may be empty when it needs none.
        vocab_size: number of ids in use; the start of each file is compared with it. None leaves that out.
    """
    problems: list[Problem] = []
    split = None
    try:
        split = parse_split(data.split)
    except MegatronDsError as error:
        problems += error.problems
    try:
        prefixes = dict.fromkeys(each.prefix for each in parse_data_path(data.data_path))
    except MegatronDsError as error:
        return [*error.problems, *problems]
    for prefix in prefixes:
        needed = [name for name in SPLITS if name == "train" or samples.of(name)]
        problems += _check_prefix(data, prefix, SplitNeeds(data.split, split, needed, seq_length), vocab_size)
    return problems


def _check_prefix(data: DataConfig, prefix: str, needs: SplitNeeds, vocab_size: int | None) -> list[Problem]:
    missing = [path for path in (bin_path(prefix), idx_path(prefix)) if not path.is_file()]
    if missing:
        return [_missing_files(prefix, missing)]
    try:
        indexed = IndexedDataset(prefix)
        indexed.check_index()
    except MegatronDsError as error:
        return list(error.problems)
    except OSError as error:
        return [Problem(f"{prefix}.bin and .idx can't be read: {error}", (Source("data_path", prefix, "--data-path"),))]
    problems = [*_check_ids(indexed, vocab_size), *_check_eod(indexed, data)]
    if indexed.dtype.kind == "f":
        problems.append(Problem(f"{bin_path(prefix)} has {indexed.dtype} values, which are not token ids"))
    return problems + _check_splits(indexed, needs)


def _check_splits(indexed: IndexedDataset, needs: SplitNeeds) -> list[Problem]:
    if needs.shares is None:
        return []
    problems = []
    for name in needs.splits:
        first, end = document_ranges(needs.shares, indexed.num_documents)[name]
        num_tokens = indexed.document_start(end) - indexed.document_start(first)
        if first == end and indexed.num_documents:
            problems.append(_empty_split(indexed, name, needs.text))
        elif num_tokens <= needs.seq_length:
            problems.append(too_small(indexed.prefix, name, num_tokens, needs.seq_length, needs.text))
    return problems


def _empty_split(indexed: IndexedDataset, name: str, split_text: str) -> Problem:
    ways_out = {
        "train": "give training a larger share in --split",
        "valid": "give validation a larger share in --split, use more documents, or set --eval-iters 0",
        "test": "give the test split a larger share in --split, or use more documents",
    }
    return Problem(
        f"the {name} split of {indexed.prefix} has none of its {indexed.num_documents} documents",
        sources=(Source("split", split_text, "--split"),),
        advice=ways_out[name],
    )


def _missing_files(prefix: str, missing: list[Path]) -> Problem:
    message = f"data file not found: {' and '.join(str(path) for path in missing)}"
    advice = "check the prefix, or write the files with `megatron-ds preprocess`"
    if prefix.endswith((".bin", ".idx")):
        advice = f"give the prefix without the suffix: {prefix[:-4]}"
    elif len(missing) == 2:
        path = Path(prefix)
        near = sorted(path.parent.glob(f"{_literal(path.name)}_*_document.idx")) if path.parent.is_dir() else []
        if near:
            advice = f"did you mean {' or '.join(str(each.with_suffix('')) for each in near)}?"
    return Problem(message, sources=(Source("data_path", prefix, "--data-path"),), advice=advice)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _check_ids(indexed: IndexedDataset, vocab_size: int | None) -> list[Problem]:
    start = indexed.tokens[:TOKENS_LOOKED_AT]
    if vocab_size is None or len(start) == 0:
        return []
    return [
        Problem(
            f"{bin_path(indexed.prefix)} has token id {token}, outside of the vocabulary of {vocab_size} ids",
            advice="use the tokenizer that the data was preprocessed with",
        )
        for token in (int(start.min()), int(start.max()))
        if not 0 <= token < vocab_size
    ][:1]


def _check_eod(indexed: IndexedDataset, data: DataConfig) -> list[Problem]:
    """Without a single EOD, options about the ends of documents would change nothing and say nothing."""
    if not data.document_options or data.eod_id is None or indexed.num_tokens == 0:
        return []
    documents = range(1, min(indexed.num_documents, ENDS_LOOKED_AT) + 1)
    # An empty document at the start has no last token: the file's first one is looked at instead.
    ends = [max(0, indexed.document_start(document) - 1) for document in documents]
    if (indexed.tokens[:TOKENS_LOOKED_AT] == data.eod_id).any() or (indexed.tokens[ends] == data.eod_id).any():
        return []
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in data.document_options)
    return [
        Problem(
            f"{bin_path(indexed.prefix)} has no end-of-document token (id {data.eod_id}): its first documents end "
            "without one",
            advice=f"preprocess with --append-eod, or leave out {flags}",
        )
    ]
