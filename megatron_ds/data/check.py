"""What is wrong with the data of a run, found from the index files before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_ds.data.build import too_small
from megatron_ds.data.indexed_dataset import IndexedDataset, bin_path, idx_path
from megatron_ds.data.samples import SampleCounts
from megatron_ds.data.sources import parse_sources
from megatron_ds.data.token_info import TokenInfo, read_token_info
from megatron_ds.errors import DataError, MegatronDsError, Problem, Source
from megatron_ds.utils.text import counted

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig

# Tokens of each file that are compared with the vocabulary: a few milliseconds of reading.
TOKENS_LOOKED_AT = 1_000_000
# Documents of each file whose last token is looked at.
ENDS_LOOKED_AT = 1_000


def check_data(
    data: DataConfig, *, seq_length: int, samples: SampleCounts, vocab_size: int | None = None
) -> list[Problem]:
    """All problems of the data options and files.

    Args:
        data: the data options.
        seq_length: input tokens per sample.
        samples: samples needed per set; a set that none are needed from is not looked at.
        vocab_size: number of ids in use; the start of each file is compared with it. None leaves that out.
    """
    try:
        blends = [blend for blend in parse_sources(data) if samples.of(blend.split)]
    except MegatronDsError as error:
        return list(error.problems)
    problems: list[Problem] = []
    opened: dict[str, IndexedDataset] = {}
    flags = {part.prefix: blend.flag for blend in reversed(blends) for part in blend.parts}
    for prefix, flag in reversed(flags.items()):
        indexed = _open(prefix, flag)
        if isinstance(indexed, IndexedDataset):
            opened[prefix] = indexed
            problems += [*_check_ids(indexed, vocab_size), *_check_eod(indexed, data)]
            if indexed.dtype.kind == "f":
                problems.append(Problem(f"{bin_path(prefix)} has {indexed.dtype} values, which are not token ids"))
        else:
            problems += indexed
    for blend in blends:
        readable = replace(blend, parts=tuple(part for part in blend.parts if part.prefix in opened))
        if not blend.may_be_missing:
            problems += too_small(readable, opened, seq_length)
    return problems


def _open(prefix: str, flag: str) -> IndexedDataset | list[Problem]:
    """The pair of files, every entry of its index checked, or what is wrong with it."""
    missing = [path for path in (bin_path(prefix), idx_path(prefix)) if not path.is_file()]
    if missing:
        return [_missing_files(prefix, missing, flag)]
    try:
        indexed = IndexedDataset(prefix)
        indexed.check_index()
    except MegatronDsError as error:
        return list(error.problems)
    except OSError as error:
        return [Problem(f"{prefix}.bin and .idx can't be read: {error}", (Source("prefix", prefix, flag),))]
    return indexed


def _missing_files(prefix: str, missing: list[Path], flag: str) -> Problem:
    message = f"data file not found: {' and '.join(str(path) for path in missing)}"
    advice = "check the prefix, or write the files with `megatron-ds preprocess`"
    if prefix.endswith((".bin", ".idx")):
        advice = f"give the prefix without the suffix: {prefix[:-4]}"
    elif len(missing) == 2:
        path = Path(prefix)
        kinds = ("document", "sentence")
        near = [found for kind in kinds for found in sorted(path.parent.glob(f"{_literal(path.name)}_*_{kind}.idx"))]
        if near:
            advice = f"did you mean {' or '.join(str(each.with_suffix('')) for each in near)}?"
    return Problem(message, sources=(Source("prefix", prefix, flag),), advice=advice)


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
    """Options about the ends of documents need an id that ends documents."""
    if not data.document_options or data.eod_id is None or indexed.num_tokens == 0:
        return []
    info = _token_info(indexed.prefix)
    if info is not None and info.eod_id not in (None, data.eod_id):
        message = f"eod_id is {data.eod_id}, and {indexed.prefix} was preprocessed with {info.eod_id} for that"
        return [Problem(message, advice="leave --eod-id out, or correct it")]
    documents = range(1, min(indexed.num_documents, ENDS_LOOKED_AT) + 1)
    # An empty document at the start has no last token: the file's first one is looked at instead.
    ends = [max(0, indexed.document_start(document) - 1) for document in documents]
    # Inside of documents as well: somebody may have joined them before.
    if (indexed.tokens[:TOKENS_LOOKED_AT] == data.eod_id).any() or (indexed.tokens[ends] == data.eod_id).any():
        return []
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in data.document_options)
    return [
        Problem(
            f"{bin_path(indexed.prefix)} has no end-of-document token (id {data.eod_id}): none of its first "
            f"{counted(len(ends), 'document')} ends with it",
            advice=f"preprocess with --append-eod, correct --eod-id, or leave out {flags}",
        )
    ]


def _token_info(prefix: str) -> TokenInfo | None:
    try:
        return read_token_info(prefix)
    except DataError:
        return None  # reported with the tokenizer


def other_tokenizers(data: DataConfig, fingerprint: str) -> list[Problem]:
    """One problem for each data set that was made with another tokenizer than the run's, as far as that is known.

    Args:
        data: the data options, which are in order.
        fingerprint: of the run's tokenizer.
    """
    if data.allow_other_tokenizer:
        return []
    problems = []
    for prefix in dict.fromkeys(part.prefix for blend in parse_sources(data) for part in blend.parts):
        info = read_token_info(prefix)
        if info is not None and info.fingerprint != fingerprint:
            problems.append(
                Problem(
                    f"{prefix} was tokenized with {info.tokenizer_type} {info.fingerprint[:12]} of {info.vocab_size} "
                    f"ids; this run's tokenizer is {data.tokenizer_type} {fingerprint[:12]}",
                    advice="give the tokenizer that the data was preprocessed with; or, if both give the same ids, "
                    "--allow-other-tokenizer",
                )
            )
    return problems
