"""Parts of the input that are read, encoded and written at the same time, each by processes of its own."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from megatron_ds.data.encode import EncodeOptions, encode_in_order, own_tokenizer, to_pass_on
from megatron_ds.data.hugging_face import DatasetChoice
from megatron_ds.data.indexed_dataset import IndexedDataset, bin_path, idx_path
from megatron_ds.data.indexed_format import token_dtype
from megatron_ds.data.input_files import InputFile
from megatron_ds.data.read_inputs import read_batches
from megatron_ds.data.write_tokens import Advance, Builders, Totals, add_batches, pairs_to_write
from megatron_ds.errors import DataError, Problem
from megatron_ds.tokenizers import Tokenizer


@dataclass(frozen=True)
class ReadOptions:
    """How an input becomes batches of tokens.

    Attributes:
        encode: how documents become tokens.
        choice: the part of Hugging Face datasets that is read.
        batch_bytes: bytes of a batch, or few more than one document has.
    """

    encode: EncodeOptions
    choice: DatasetChoice
    batch_bytes: int


@dataclass(frozen=True)
class Partition:
    """A part of the input.

    Attributes:
        files: files, the first and the last of which may be parts of files.
        num_workers: processes that encode it; 1 is the one that reads it.
    """

    files: tuple[InputFile, ...]
    num_workers: int


class _StoppedError(Exception):
    """Another partition has failed."""


def plan_partitions(files: Sequence[InputFile], count: int, num_workers: int) -> list[Partition]:
    """Cuts the input into parts of about the same number of bytes, in order.

    JSON lines that are not packed are cut between two lines; other files stay whole. So there may be fewer parts than
    asked for.

    Args:
        files: the input; no Hugging Face datasets, whose bytes are not known.
        count: number of parts.
        num_workers: processes of all parts together, at least `count`.
    """
    starts = np.cumsum([0, *(file.num_bytes for file in files)]).tolist()
    total = starts[-1]
    cuts = {_cut(files, starts, total * number // count) for number in range(1, count)}
    borders = sorted({0, total, *cuts})
    parts = [_between(files, starts, start, end) for start, end in pairwise(borders)] or [tuple(files)]
    share, rest = divmod(num_workers, len(parts))
    return [Partition(part, share + (number < rest)) for number, part in enumerate(parts)]


def _cut(files: Sequence[InputFile], starts: Sequence[int], place: int) -> int:
    """The place next to `place`, counted in bytes over all files, at which the input can be cut."""
    number = max(number for number in range(len(files)) if starts[number] <= place)
    start, end = starts[number], starts[number + 1]
    if files[number].can_be_cut:
        return start + files[number].line_start(place - start)
    return start if place - start < end - place else end


def _between(files: Sequence[InputFile], starts: Sequence[int], start: int, end: int) -> tuple[InputFile, ...]:
    part = []
    for file, file_start, file_end in zip(files, starts, starts[1:], strict=False):
        if file_start == file_end:
            # A file without bytes is a document without text, counted once.
            is_inside = start <= file_start < end or file_start == end == starts[-1]
        else:
            is_inside = max(start, file_start) < min(end, file_end)
        if not is_inside:
            continue
        is_whole = start <= file_start and file_end <= end
        span = (max(start, file_start) - file_start, min(end, file_end) - file_start)
        part.append(file if is_whole else replace(file, span=span))
    return tuple(part)


def read_and_add(
    files: Sequence[InputFile],
    options: ReadOptions,
    tokenizer: Tokenizer,
    num_workers: int,
    builders: Builders,
    report: Callable[[Advance], None],
) -> Totals:
    """Reads files, encodes their documents and appends them to the pairs of their keys.

    Raises:
        DataError: a document or a file is bad, or a worker died.
    """
    inputs = read_batches(files, options.encode.keys, options.batch_bytes, options.choice)
    # Closed here, not by the garbage collector: workers end before this process does.
    with closing(encode_in_order(inputs, options.encode, tokenizer, num_workers)) as batches:
        return add_batches(batches, builders, report)


def add_partitions(
    partitions: Sequence[Partition],
    options: ReadOptions,
    tokenizer: Tokenizer,
    folder: Path,
    builders: Builders,
    report: Callable[[Advance], None],
) -> Totals:
    """Does what `read_and_add` does, part by part at the same time; the bytes that are written are the same.

    Args:
        partitions: the parts of the input.
        options: how they are read and encoded.
        tokenizer: the tokenizer.
        folder: a folder for the files of the parts, made and removed here. It needs as much space as the result.
        builders: the pair of each key.
        report: called after each batch of any part.

    Raises:
        DataError: a document or a file is bad (of the first part that has one), or a process died.
    """
    folder.mkdir(parents=True)
    try:
        with _started(partitions, options, tokenizer, folder) as running:
            results = _collect(running, report)
        totals = Totals()
        for number, result in enumerate(results):
            totals.add(result)
            for key, prefix in _prefixes(folder, number, options.encode.keys).items():
                builders[key].add_dataset(IndexedDataset(prefix))
                bin_path(prefix).unlink()
                idx_path(prefix).unlink()
        return totals
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefixes(folder: Path, number: int, keys: Sequence[str]) -> dict[str, str]:
    """The pair of each key of a partition. Keys may have any letters, so they are numbered."""
    return {key: str(folder / f"{number}_{index}") for index, key in enumerate(keys)}


@dataclass(frozen=True)
class _Running:
    """Processes, one for each part, and where they report to."""

    connections: list[Connection]
    stop: Any


@contextmanager
def _started(
    partitions: Sequence[Partition], options: ReadOptions, tokenizer: Tokenizer, folder: Path
) -> Iterator[_Running]:
    context = multiprocessing.get_context()
    stop = context.Event()
    connections, processes = [], []
    for number, partition in enumerate(partitions):
        receiver, sender = context.Pipe(duplex=False)
        prefixes = _prefixes(folder, number, options.encode.keys)
        process = context.Process(
            target=_run_partition, args=(partition, options, prefixes, to_pass_on(tokenizer), sender, stop)
        )
        process.start()
        # Ours would keep the pipe open when the process is gone.
        sender.close()
        connections.append(receiver)
        processes.append(process)
    try:
        yield _Running(connections, stop)
    finally:
        stop.set()
        for connection in connections:
            connection.close()
        for process in processes:
            process.join()


def _collect(running: _Running, report: Callable[[Advance], None]) -> list[Totals]:
    """The results of all parts, in order.

    Raises:
        DataError: or whatever else the first part that failed has raised.
    """
    results: dict[int, Totals] = {}
    failures: dict[int, BaseException] = {}
    open_connections = dict(enumerate(running.connections))
    # Parts before one that failed go on: the input's first bad line is the one to be told.
    while any(number < min(failures, default=number + 1) for number in open_connections):
        for ready in wait(list(open_connections.values())):
            number = next(key for key, connection in open_connections.items() if connection is ready)
            message = _receive(open_connections[number])
            if isinstance(message, Advance):
                report(message)
                continue
            del open_connections[number]
            if isinstance(message, Totals):
                results[number] = message
            else:
                failures[number] = message
    if failures:
        raise failures[min(failures)]
    return [results[number] for number in sorted(results)]


def _receive(connection: Connection) -> Advance | Totals | BaseException:
    try:
        message: Advance | Totals | BaseException = connection.recv()
    except EOFError:
        advice = "use fewer --workers or --partitions when memory ran out; nothing was written"
        return DataError(Problem("the process of a partition died", advice=advice))
    return message


def _run_partition(
    partition: Partition,
    options: ReadOptions,
    prefixes: dict[str, str],
    passed_on: Tokenizer | None,
    sender: Connection,
    stop: Any,
) -> None:
    def report(advance: Advance) -> None:
        if stop.is_set():
            raise _StoppedError
        sender.send(advance)

    tokenizer = own_tokenizer(options.encode, passed_on)
    try:
        with pairs_to_write(prefixes, token_dtype(tokenizer.vocab_size)) as builders:
            totals = read_and_add(partition.files, options, tokenizer, partition.num_workers, builders, report)
        sender.send(totals)
    except (_StoppedError, BrokenPipeError, KeyboardInterrupt):
        # Nobody listens any more: another part has failed, or the command was stopped.
        return
    except Exception as error:
        sender.send(error)
