"""Whether a checkpoint is what was saved: its files, their hashes, their numbers, and its copies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_ds.checkpoint.manifest import MANIFEST_NAME
from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.safe_load import DEEPSPEED_CLASSES, load_file
from megatron_ds.checkpoint.zero_pieces import STATES, Kind
from megatron_ds.errors import CheckpointError

_CHUNK_BYTES = 2**24


def verify(checkpoint: CheckpointReader, watch: Callable[[list[str]], Iterable[str]] = iter) -> Iterator[str]:
    """What is wrong with a checkpoint, one line for each finding; nothing where it is whole.

    Looks at every file that the manifest lists (is it there, its size, its SHA-256, numbers that are not finite), at
    files that it does not list, and whether the copies of uncut parameters on tensor-parallel ranks are equal to the
    bit.

    Args:
        checkpoint: the checkpoint.
        watch: goes over files and parameters, to show progress.
    """
    folder, listed = checkpoint.folder, checkpoint.manifest.files
    if not listed:
        yield f"{MANIFEST_NAME} lists no files, so nothing can be said about missing and changed ones"
    bad = False
    for name in watch(sorted(listed)):
        for finding in _file_findings(folder / name, listed[name]):
            bad = True
            yield f"{name}: {finding}"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for name in sorted(there - set(listed) - {MANIFEST_NAME}) if listed else []:
        yield f"{name}: the manifest does not list it"
    if not bad:
        yield from _copies_that_differ(checkpoint, watch)


def _file_findings(path: Path, saved: Mapping[str, Any]) -> Iterator[str]:
    try:
        size = path.stat().st_size
        if size != saved["bytes"]:
            yield f"{size} bytes instead of {saved['bytes']}"
            return
        if sha256_of(path) != saved["sha256"]:
            yield "its SHA-256 is not the one in the manifest: the file was changed after it was saved"
            return
    except OSError as error:
        yield f"missing ({error.strerror})"
        return
    try:
        content = load_file(path, DEEPSPEED_CLASSES)
    except CheckpointError as error:
        yield str(error.problems[0].message)
        return
    for where, tensor in _tensors(content):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            yield f"{where}: {count} of {tensor.numel()} numbers are not finite"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _tensors(content: Any, where: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested dicts and lists, with the way to each."""
    if isinstance(content, Tensor):
        yield where, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, f"{where}.{key}" if where else str(key))
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from _tensors(value, f"{where}[{index}]")


def _copies_that_differ(checkpoint: CheckpointReader, watch: Callable[[list[str]], Iterable[str]]) -> Iterator[str]:
    if checkpoint.manifest.layout.tp_size == 1:
        return
    kinds: tuple[Kind, ...] = ("weights", *(STATES if checkpoint.has_optimizer else ()))
    for name in watch([name for name, spec in checkpoint.specs.items() if spec.dim is None]):
        for kind in kinds:
            first, *others = checkpoint.copies(name, kind)
            for rank, other in enumerate(others, 1):
                if not torch.equal(other, first):
                    yield f"{kind} of {name}: tensor-parallel rank {rank} holds another copy than rank 0"
