"""How two checkpoints differ, whatever their layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.zero_pieces import STATES, Kind


def differences(
    first: CheckpointReader, second: CheckpointReader, watch: Callable[[list[str]], Iterable[str]] = iter
) -> Iterator[str]:
    """Lines about what differs: progress, model options, names, shapes, dtypes, and the largest |a - b| of each state.

    Nothing where both hold the same to the bit. How the files are cut is no difference.
    """
    before, after = first.manifest, second.manifest
    for what, a, b in (("progress", before.progress, after.progress), ("model", before.model, after.model)):
        for key in dict.fromkeys((*a, *b)):
            if a.get(key) != b.get(key):
                yield f"{what}.{key}: {a.get(key)} | {b.get(key)}"
    yield from (f"{name}: only in the first" for name in first.specs if name not in second.specs)
    yield from (f"{name}: only in the second" for name in second.specs if name not in first.specs)
    if first.has_optimizer != second.has_optimizer:
        yield f"optimizer: only in the {'first' if first.has_optimizer else 'second'}"
    kinds: tuple[Kind, ...] = ("weights", *(STATES if first.has_optimizer and second.has_optimizer else ()))
    for name in watch([name for name in first.specs if name in second.specs]):
        for kind in kinds:
            difference = _difference(first, second, name, kind)
            if difference:
                yield f"{kind} of {name}: {difference}"


def _difference(first: CheckpointReader, second: CheckpointReader, name: str, kind: Kind) -> str:
    a, b = first.read(name, kind), second.read(name, kind)
    if a.shape != b.shape:
        return f"{list(a.shape)} | {list(b.shape)}"
    if a.dtype == b.dtype and torch.equal(a, b):
        return ""
    dtypes = "" if a.dtype == b.dtype else f"{a.dtype} | {b.dtype}, ".replace("torch.", "")
    distance, size = (a.double() - b.double()).abs(), float(a.double().abs().max())
    count = int((distance > 0).sum())
    return f"{dtypes}largest |a - b| {float(distance.max()):.3g}, in {count} of {a.numel()} (largest |a| {size:.3g})"
