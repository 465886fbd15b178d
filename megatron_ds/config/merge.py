"""Brings DeepSpeed's keys and our options together: one side given fills the other, both and different is refused."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_ds.config.catalog import all_options
from megatron_ds.config.deepspeed_reader import Claim, DeepSpeedFile
from megatron_ds.config.settings import Given, Settings
from megatron_ds.errors import Problem, Source
from megatron_ds.utils.text import value_text

_MICRO, _GLOBAL = "training.micro_batch_size", "training.global_batch_size"


def merge_claims(given: Mapping[str, Given], file: DeepSpeedFile) -> tuple[dict[str, Given], list[Problem]]:
    """Fills options from DeepSpeed's keys, and compares where both are given.

    Args:
        given: what flags, blocks and presets say, by path.
        file: what the DeepSpeed JSON says.

    Returns:
        The options with the claims in them, and a problem for each contradiction.
    """
    merged, problems = dict(given), []
    for claim in file.claims:
        there = merged.setdefault(claim.path, claim.given)
        if there.value != claim.given.value:
            problems.append(_contradiction(claim, there))
    problems += _merge_cosine_floor(merged, file.cos_min_ratio)
    return merged, problems


def _contradiction(claim: Claim, there: Given) -> Problem:
    name = all_options()[claim.path].name
    return Problem(
        f"{name} is given twice, as {value_text(there.value)} and as {value_text(claim.given.value)}",
        (
            Source(name, value_text(there.value), there.origin),
            Source(name, value_text(claim.given.value), claim.given.origin),
        ),
        'keep one of the two, or write "auto" in the DeepSpeed JSON',
    )


def _merge_cosine_floor(merged: dict[str, Given], ratio: Given | None) -> list[Problem]:
    """WarmupCosineLR's floor is a share of the peak; ours is a learning rate."""
    peak = merged.get("optimizer.lr")
    if ratio is None or peak is None:
        return []
    claim = Claim("optimizer.min_lr", Given(ratio.value * peak.value, f"{ratio.origin} x lr"))
    there = merged.setdefault(claim.path, claim.given)
    close = abs(there.value - claim.given.value) <= 1e-9 * peak.value
    return [] if close else [_contradiction(claim, there)]


def merge_batch_sizes(settings: Settings, accumulation: Given | None) -> tuple[dict[str, Given], list[Problem]]:
    """Fills the third of micro-batch size, global batch size and accumulation steps; checks them if all are there.

    The global batch is ``micro_batch_size x accumulation steps x data-parallel size``. DeepSpeed counts data-parallel
    replicas, not processes.

    Args:
        settings: the options; the data-parallel size follows from them.
        accumulation: gradient_accumulation_steps of the DeepSpeed JSON.

    Returns:
        The options that were filled, and problems.
    """
    if not settings.dp_size:
        return {}, []  # reported by the rule on the number of processes
    micro, batch = settings.get(_MICRO), settings.get(_GLOBAL)
    if micro is not None and batch is not None:
        return {}, _batch_problems(settings, micro, batch, accumulation)
    if micro is not None:
        return {_GLOBAL: _derived_batch(settings, micro, accumulation)}, []
    if batch is not None and accumulation is not None:
        return _derive_micro_batch(settings, batch, accumulation)
    return {}, []


def _derived_batch(settings: Settings, micro: Given, accumulation: Given | None) -> Given:
    assert settings.dp_size is not None
    steps = accumulation.value if accumulation is not None else 1
    origin = f"derived: micro {micro.value} x gas {steps} x dp {settings.dp_size}"
    return Given(micro.value * steps * settings.dp_size, origin)


def _derive_micro_batch(
    settings: Settings, batch: Given, accumulation: Given
) -> tuple[dict[str, Given], list[Problem]]:
    assert settings.dp_size is not None
    size, rest = divmod(batch.value, accumulation.value * settings.dp_size)
    if rest:
        return {}, [_no_micro_batch(settings, batch, accumulation)]
    origin = f"derived: global batch {batch.value} / (gas {accumulation.value} x dp {settings.dp_size})"
    return {_MICRO: Given(size, origin)}, []


def _batch_problems(settings: Settings, micro: Given, batch: Given, accumulation: Given | None) -> list[Problem]:
    assert settings.dp_size is not None
    replicas = micro.value * settings.dp_size
    if accumulation is not None and replicas * accumulation.value != batch.value:
        return [_unequal_triple(settings, micro, batch, accumulation)]
    return [_indivisible_batch(settings, micro, batch)] if batch.value % replicas else []


def _unequal_triple(settings: Settings, micro: Given, batch: Given, accumulation: Given) -> Problem:
    dp_size = settings.dp_size
    assert dp_size is not None
    product = micro.value * accumulation.value * dp_size
    ways = [f"global batch size {product}"]
    steps, rest = divmod(batch.value, micro.value * dp_size)
    if steps and not rest:
        ways.append(f"gradient_accumulation_steps {steps}")
    return Problem(
        f"the batch sizes don't fit: micro {micro.value} × gas {accumulation.value} × dp {dp_size} = {product}, "
        f"expected {batch.value} (dp counts data-parallel replicas, not processes)",
        (
            Source("global_batch_size", str(batch.value), batch.origin),
            Source("micro_batch_size", str(micro.value), micro.origin),
            Source("gradient_accumulation_steps", str(accumulation.value), accumulation.origin),
            settings.dp_source,
        ),
        f"use {' or '.join(ways)}, or leave one of the three out: it is derived",
    )


def _indivisible_batch(settings: Settings, micro: Given, batch: Given) -> Problem:
    assert settings.dp_size is not None
    unit = micro.value * settings.dp_size
    below = batch.value // unit * unit
    nearest = f"{below} or {below + unit}" if below else str(unit)
    return Problem(
        f"global batch size {batch.value} is not a multiple of micro_batch_size {micro.value} x data-parallel size "
        f"{settings.dp_size} = {unit}",
        (
            Source("global_batch_size", str(batch.value), batch.origin),
            Source("micro_batch_size", str(micro.value), micro.origin),
            settings.dp_source,
        ),
        f"use {nearest}, or change one of the two",
    )


def _no_micro_batch(settings: Settings, batch: Given, accumulation: Given) -> Problem:
    assert settings.dp_size is not None
    unit = accumulation.value * settings.dp_size
    return Problem(
        f"no micro-batch size fits: global batch size {batch.value} is not a multiple of gradient_accumulation_steps "
        f"{accumulation.value} x data-parallel size {settings.dp_size} = {unit}",
        (
            Source("global_batch_size", str(batch.value), batch.origin),
            Source("gradient_accumulation_steps", str(accumulation.value), accumulation.origin),
            settings.dp_source,
        ),
        "give --micro-batch-size instead of gradient_accumulation_steps, or change one of the two",
    )
