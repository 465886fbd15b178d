"""Reads documents from Hugging Face datasets: saved ones, local folders, and those of the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_ds.data.input_files import damaged_input
from megatron_ds.data.records import BatchCollector, RecordBatch, check_columns
from megatron_ds.errors import DataError, Problem

_DEFAULT_SPLIT = "train"
# Rows that are turned into Python objects at a time. Few: one of them may have megabytes.
_ROWS_AT_A_TIME = 16
_SECONDS_FOR_HUB = 10.0
_DAMAGED_ADVICE = "check its files, or copy or download it again; nothing was written"


@dataclass(frozen=True)
class DatasetChoice:
    """Which part of a dataset is read.

    Attributes:
        config: name of its configuration, or None: its only or its default one.
        split: name of the split, or None: ``train``, or the only one of a saved dataset without splits.
    """

    config: str | None = None
    split: str | None = None


def read_dataset(name: str, choice: DatasetChoice, keys: Sequence[str], batch_bytes: int) -> Iterator[RecordBatch]:
    """Reads the rows of a dataset as documents, in order; only the columns that `keys` name.

    The rows come from the library's stream: what is in memory at a time is a piece of the file as it was written (a
    row group of Parquet, 1000 rows of a saved dataset).

    Args:
        name: a folder that ``save_to_disk`` wrote, a folder with data files, or a name on the hub.
        choice: configuration and split.
        keys: the columns with text.
        batch_bytes: bytes of a batch, or few more than one document has.

    Raises:
        DataError: there is no such dataset, configuration, split or column, or it can't be read.
    """
    stream = _open(name, choice)
    if stream.column_names is not None:
        check_columns(name, stream.column_names, keys)
        stream = stream.select_columns(list(keys))
    collector = BatchCollector(batch_bytes)
    row_number = 1
    for columns in _tables(name, stream):
        check_columns(name, list(columns), keys)
        for values in zip(*(columns[key] for key in keys), strict=True):
            record = {key: _as_bytes(value) for key, value in zip(keys, values, strict=True)}
            if batch := collector.add(f"{name}: row {row_number}", record):
                yield batch
            row_number += 1
    if batch := collector.finish():
        yield batch


def _open(name: str, choice: DatasetChoice) -> Any:
    path = Path(name)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _open_saved(path, choice)
    datasets = _import_datasets()
    if not path.is_dir():
        _check_hub(name)
    advice = "check --input, --dataset-config and --dataset-split; nothing was written"
    with _named_errors(f"dataset {name} can't be opened", advice):
        return datasets.load_dataset(name, choice.config, split=choice.split or _DEFAULT_SPLIT, streaming=True)


@contextmanager
def _named_errors(what: str, advice: str) -> Iterator[None]:
    """Turns whatever the library raises into a message that starts with `what`.

    Raises:
        DataError: in the place of any error.
    """
    try:
        yield
    except Exception as error:  # The library and those below it have no common class.
        raise DataError(Problem(f"{what}: {_first_line(error.__cause__ or error)}", advice=advice)) from None


def _open_saved(path: Path, choice: DatasetChoice) -> Any:
    if choice.config is not None:
        raise DataError(
            Problem(f"{path} was saved by save_to_disk and has no configurations", advice="leave --dataset-config out")
        )
    folder = _saved_split(path, choice.split)
    files = [str(folder / name) for name in _data_files(folder / "state.json")]
    if missing := [file for file in files if not Path(file).is_file()]:
        raise DataError(damaged_input(folder, f"lacks {Path(missing[0]).name}"))
    # Not `load_from_disk`: that maps the files, and every page that was read counts as memory of this process.
    datasets = _import_datasets()
    # It reads the first of them for the names of the columns.
    with _named_errors(f"dataset {folder} can't be opened", _DAMAGED_ADVICE):
        return datasets.load_dataset("arrow", data_files=files, split="train", streaming=True)


def _data_files(state_path: Path) -> list[str]:
    """The names of a saved dataset's files."""
    state = _read_json(state_path)
    try:
        return [str(each["filename"]) for each in state["_data_files"]]
    except (KeyError, TypeError):
        raise DataError(damaged_input(state_path, "names no data files")) from None


def _saved_split(path: Path, split: str | None) -> Path:
    """The folder of a split of a saved dataset."""
    if (path / "dataset_dict.json").is_file():
        splits = _read_json(path / "dataset_dict.json").get("splits")
        if not isinstance(splits, list):
            raise DataError(damaged_input(path / "dataset_dict.json", "names no splits"))
        if (split or _DEFAULT_SPLIT) not in splits:
            raise DataError(_no_split(path, split or _DEFAULT_SPLIT, splits))
        return path / (split or _DEFAULT_SPLIT)
    only = _read_json(path / "state.json").get("_split")
    if split is not None and split != only:
        raise DataError(_no_split(path, split, [only] if only else []))
    return path


def _no_split(path: Path, split: str, splits: Sequence[str]) -> Problem:
    if not splits:
        return Problem(f"{path} was saved without splits", advice="leave --dataset-split out")
    return Problem(
        f"{path} has no split {split!r}; it has {', '.join(map(repr, splits))}", advice="name one with --dataset-split"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(damaged_input(path, f"can't be read: {error}")) from None
    if not isinstance(content, dict):
        raise DataError(damaged_input(path, "has no JSON object"))
    return content


def _check_hub(name: str) -> None:
    """Asks the hub once: the library would try for half a minute."""
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name, timeout=_SECONDS_FOR_HUB)
    except Exception as error:  # Of the library, or of whatever it uses for HTTP.
        raise DataError(
            Problem(
                f"{name} is no folder here, and the hub gives no dataset of this name: {_first_line(error)}",
                advice="check --input and the network; without one, give a folder that save_to_disk wrote",
            )
        ) from None


def _import_datasets() -> Any:
    """The library, without torch: it would import it for a stream, which costs seconds and 200 MB."""
    before = os.environ.get("USE_TORCH")
    os.environ["USE_TORCH"] = "0"
    try:
        import datasets
    finally:
        if before is None:
            del os.environ["USE_TORCH"]
        else:
            os.environ["USE_TORCH"] = before
    return datasets


def _tables(name: str, stream: Any) -> Iterator[dict[str, list[Any]]]:
    tables = stream.iter(batch_size=_ROWS_AT_A_TIME)
    while True:
        with _named_errors(f"dataset {name} can't be read", _DAMAGED_ADVICE):
            table = next(tables, None)
        if table is None:
            return
        yield table


def _as_bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
