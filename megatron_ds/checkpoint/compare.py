"""How two checkpoints differ, whatever their layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from megatron_ds.checkpoint.describe import folded_name
from megatron_ds.checkpoint.fits import model_options
from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.zero_pieces import STATES, Kind
from megatron_ds.utils.text import counted


@dataclass(frozen=True)
class StateDifference:
    """How one state differs: of one parameter, or of several together.

    Attributes:
        kind: ``weights``, ``fp32``, ``exp_avg`` or ``exp_avg_sq``.
        name: of the parameter that has the largest difference, or of all where several are together.
        unlike: what else differs: shapes or dtypes, as text.
        largest: largest difference; 0 where shapes differ.
        num_different: how many numbers differ.
        num_numbers: of how many.
        size: largest absolute value in the first checkpoint.
        num_parameters: how many parameters are together.
    """

    kind: Kind
    name: str
    unlike: str
    largest: float
    num_different: int
    num_numbers: int
    size: float
    num_parameters: int = 1

    def __str__(self) -> str:
        of = self.name if self.num_parameters == 1 else f"{self.num_parameters} x {self.name}"
        return f"{self.kind} of {of}: {self.unlike}{self._numbers()}"

    def summary(self) -> str:
        """A line about all parameters together, of which `name` has the largest difference."""
        what = counted(self.num_parameters, "parameter")
        return f"{self.kind}: {what} with differences: {self._numbers()}, most in {self.name}"

    def _numbers(self) -> str:
        counts = f"in {self.num_different} of {self.num_numbers}"
        return f"largest |a - b| {self.largest:.3g}, {counts} (largest |a| {self.size:.3g})"


def differences(
    first: CheckpointReader,
    second: CheckpointReader,
    watch: Callable[[list[str]], Iterable[str]] = iter,
    *,
    every: bool = False,
) -> Iterator[str]:
    """Lines about what differs: progress, model options, names, shapes, dtypes, and the largest |a - b| of each state.

    Nothing where both hold the same to the bit. How the files are cut is no difference.

    Args:
        first: one checkpoint.
        second: the other.
        watch: goes over the names, to show progress.
        every: a line for each parameter, instead of one for those of all layers that are alike.
    """
    before, after = first.manifest, second.manifest
    models = (model_options(first.model), model_options(second.model))
    for what, (a, b) in {"progress": (before.progress, after.progress), "model": models}.items():
        yield from _unlike_values(what, a, b)
    yield from (f"{name}: only in the first" for name in first.specs if name not in second.specs)
    yield from (f"{name}: only in the second" for name in second.specs if name not in first.specs)
    if first.has_optimizer != second.has_optimizer:
        yield f"optimizer: only in the {'first' if first.has_optimizer else 'second'}"
    kinds: tuple[Kind, ...] = ("weights", *(STATES if first.has_optimizer and second.has_optimizer else ()))
    shared = [name for name in first.specs if name in second.specs]
    found = [found for name in watch(shared) for kind in kinds if (found := _difference(first, second, name, kind))]
    for kind in kinds:
        if of_kind := [one for one in found if one.kind == kind]:
            yield _together(of_kind, max(of_kind, key=lambda one: one.largest).name).summary()
    yield from map(str, found if every else _folded(found))


def _unlike_values(what: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*a, *b)):
        if a.get(key) != b.get(key):
            yield f"{what}.{key}: {a.get(key)} | {b.get(key)}"


def _folded(found: Sequence[StateDifference]) -> Iterator[StateDifference]:
    """One for the parameters of all layers that are alike."""
    groups: dict[tuple[str, ...], list[StateDifference]] = {}
    for one in found:
        groups.setdefault((one.kind, folded_name(one.name), one.unlike), []).append(one)
    for (_, name, _), group in groups.items():
        yield group[0] if len(group) == 1 else _together(group, name)


def _together(group: Sequence[StateDifference], name: str) -> StateDifference:
    return replace(
        group[0],
        name=name,
        largest=max(one.largest for one in group),
        num_different=sum(one.num_different for one in group),
        num_numbers=sum(one.num_numbers for one in group),
        size=max(one.size for one in group),
        num_parameters=len(group),
    )


def _difference(first: CheckpointReader, second: CheckpointReader, name: str, kind: Kind) -> StateDifference | None:
    a, b = first.read(name, kind), second.read(name, kind)
    size = float(a.double().abs().max())
    if a.shape != b.shape:
        return StateDifference(kind, name, f"{list(a.shape)} | {list(b.shape)}, ", 0.0, a.numel(), a.numel(), size)
    if a.dtype == b.dtype and torch.equal(a, b):
        return None
    dtypes = "" if a.dtype == b.dtype else f"{a.dtype} | {b.dtype}, ".replace("torch.", "")
    distance = (a.double() - b.double()).abs()
    # Written so that NaN counts.
    count = int((~(distance == 0)).sum())
    return StateDifference(kind, name, dtypes, float(distance.max()), count, a.numel(), size)
