"""Reads the DeepSpeed keys of a JSON: refuses what is unknown, and turns what is ours into claims on options."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_ds.config.catalog import all_options, convert_json
from megatron_ds.config.deepspeed_keys import (
    OPTIMIZER_TYPES,
    OURS,
    PASSED,
    REFUSED,
    SCHEDULER_PARAMS,
    SCHEDULER_STYLES,
    known_keys,
)
from megatron_ds.config.deepspeed_kinds import COUNT, POSITIVE
from megatron_ds.config.files import ConfigFile
from megatron_ds.config.migration import advice_for
from megatron_ds.config.settings import Given, wrong_option_value, wrong_value
from megatron_ds.config.spelling import did_you_mean
from megatron_ds.errors import Problem, Source
from megatron_ds.utils.text import quoted

AUTO = "auto"

# Keys whose value is an option's value as it stands.
_SAME_VALUE = tuple(
    key
    for key, path in OURS.items()
    if path in all_options() and key not in ("fp16.initial_scale_power", "scheduler.type")
)


@dataclass(frozen=True)
class Claim:
    """A value that a DeepSpeed key wants an option to have.

    Attributes:
        path: the option.
        given: the value and the key.
    """

    path: str
    given: Given


@dataclass
class DeepSpeedFile:
    """What a DeepSpeed JSON says, apart from its `megatron_ds` block.

    Attributes:
        label: the file's name in messages.
        claims: values for our options, in the file's order of meaning.
        autos: keys that are ``"auto"`` and ours, with the option that fills each.
        accumulation: gradient_accumulation_steps, if it is a number.
        cos_min_ratio: WarmupCosineLR's last learning rate as a share of the peak, if it is a number.
        passed: what DeepSpeed gets as it is.
        notes: what the user should know.
        problems: what is wrong with the file.
        failed: paths of options whose value is among the problems.
    """

    label: str = ""
    claims: list[Claim] = field(default_factory=list)
    autos: dict[str, str] = field(default_factory=dict)
    accumulation: Given | None = None
    cos_min_ratio: Given | None = None
    passed: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)


def read_deepspeed_keys(file: ConfigFile) -> DeepSpeedFile:
    """Reads everything in a DeepSpeed JSON that is not the `megatron_ds` block.

    Args:
        file: the file.

    Returns:
        What it says, with the problems in it.
    """
    content = {key: value for key, value in file.content.items() if key != "megatron_ds"}
    result = DeepSpeedFile(file.label)
    result.problems += _key_problems(content, file.label, "")
    result.passed = _passed_on(content, "")
    for key in _SAME_VALUE:
        _claim(result, content, key, OURS[key])
    _read_scale_power(result, content)
    _read_betas(result, content)
    _read_optimizer_type(result, content)
    _read_scheduler(result, content)
    _read_accumulation(result, content)
    return result


def _lookup(content: Mapping[str, Any], dotted: str) -> Any:
    """The value of a dotted key; None when it is absent."""
    value: Any = content
    for part in dotted.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _key_problems(content: Mapping[str, Any], label: str, block: str) -> Iterator[Problem]:
    """Unknown and refused keys of one block and of the blocks inside it."""
    for key, value in content.items():
        dotted = f"{block}.{key}".lstrip(".")
        refusal = REFUSED.get(dotted)
        if refusal is not None:
            if not refusal.accepts(value):
                yield Problem(f"{label}: {dotted} is refused: {refusal.reason}", advice=refusal.instead)
        elif key not in known_keys(block):
            yield _unknown_key(key, label, block)
        elif dotted in PASSED and isinstance(value, Mapping):
            yield from _key_problems(value, label, dotted)
        elif dotted in PASSED and value is not None:
            yield Problem(f"{label}: {dotted} is an object {{…}}, not {quoted(value)}")


def _unknown_key(key: str, label: str, block: str) -> Problem:
    hint = did_you_mean(key, (*known_keys(block), "megatron_ds") if not block else known_keys(block))
    homes = [f"{other}.{key}".lstrip(".") for other in PASSED if other != block and key in known_keys(other)]
    homes += [option.json_key for option in all_options().values() if option.name == key]
    if not hint and homes:
        hint = f"; its place is {homes[0]}"
    advice = "" if hint else advice_for(key) or "docs/config.md lists DeepSpeed's keys and our options"
    return Problem(f"{label}: unknown key {f'{block}.{key}'.lstrip('.')}{hint}", advice=advice)


def _passed_on(content: Mapping[str, Any], block: str) -> dict[str, Any]:
    """A copy of `content` without what is ours or refused, and without blocks that become empty."""
    result = {}
    for key, value in content.items():
        dotted = f"{block}.{key}".lstrip(".")
        if dotted in PASSED and isinstance(value, Mapping):
            inner = _passed_on(value, dotted)
            if inner:
                result[key] = inner
        elif key in PASSED[block] and value is not None:
            result[key] = copy.deepcopy(value)
    return result


def _claim(result: DeepSpeedFile, content: Mapping[str, Any], key: str, path: str) -> None:
    """Stores the claim of one key whose value is an option's value."""
    value = _lookup(content, key)
    if value == AUTO:
        result.autos[key] = path
    elif value is not None:
        _claim_value(result, key, path, value)


def _claim_value(result: DeepSpeedFile, key: str, path: str, value: Any) -> None:
    origin = f"{result.label}: {key}"
    try:
        result.claims.append(Claim(path, Given(convert_json(all_options()[path], value), origin)))
    except ValueError as error:
        result.failed.add(path)
        result.problems.append(wrong_option_value(all_options()[path], value, origin, error, key))


def _read_scale_power(result: DeepSpeedFile, content: Mapping[str, Any]) -> None:
    key, path = "fp16.initial_scale_power", "training.initial_loss_scale"
    power = _lookup(content, key)
    if power == AUTO:
        result.autos[key] = path
    elif COUNT.accepts(power) and power < 64:
        _claim_value(result, key, path, 2.0 ** int(power))
    elif power is not None:
        result.problems.append(wrong_value(key, power, f"{result.label}: {key}", "a whole number from 0 to 63"))


def _read_betas(result: DeepSpeedFile, content: Mapping[str, Any]) -> None:
    key, paths = "optimizer.params.betas", ("optimizer.adam_beta1", "optimizer.adam_beta2")
    betas = _lookup(content, key)
    if betas == AUTO:
        result.autos[key] = " and ".join(paths)
    elif isinstance(betas, list) and len(betas) == 2:
        for path, beta in zip(paths, betas, strict=True):
            _claim_value(result, key, path, beta)
    elif betas is not None:
        result.problems.append(wrong_value(key, betas, f"{result.label}: {key}", "a list of two numbers"))


def _read_optimizer_type(result: DeepSpeedFile, content: Mapping[str, Any]) -> None:
    kind = _lookup(content, "optimizer.type")
    if kind is not None and str(kind).lower() not in [name.lower() for name in OPTIMIZER_TYPES]:
        result.problems.append(
            Problem(
                f"{result.label}: optimizer.type {quoted(kind)} isn't supported: its gradient norm, clipping or states "
                "are not the same at every layout",
                advice=f"use {' or '.join(OPTIMIZER_TYPES)}; both mean AdamW",
            )
        )


def _read_scheduler(result: DeepSpeedFile, content: Mapping[str, Any]) -> None:
    """The scheduler's type gives the shape of the decay; what else its parameters say has no option of its own."""
    if not isinstance(content.get("scheduler"), Mapping):
        return  # absent, or no object, which is reported as for every block
    kind = _lookup(content, "scheduler.type")
    if not isinstance(kind, str) or kind not in SCHEDULER_STYLES:
        result.problems.append(
            Problem(
                f"{result.label}: scheduler.type {quoted(kind)} has no counterpart among our schedules",
                advice=f"use {', '.join(SCHEDULER_STYLES)}, or take the scheduler out and give --lr-decay-style",
            )
        )
        return
    _claim_value(result, "scheduler.type", "optimizer.lr_decay_style", SCHEDULER_STYLES[kind])
    if kind == "WarmupDecayLR":
        origin = f"{result.label}: scheduler.type (WarmupDecayLR ends at 0)"
        result.claims.append(Claim("optimizer.min_lr", Given(0.0, origin)))
    params = _lookup(content, "scheduler.params")
    _read_scheduler_params(result, kind, params if isinstance(params, Mapping) else {})


def _read_scheduler_params(result: DeepSpeedFile, kind: str, params: Mapping[str, Any]) -> None:
    for key in params:
        if key not in SCHEDULER_PARAMS[kind] and key in known_keys("scheduler.params"):
            result.problems.append(Problem(f"{result.label}: scheduler.params.{key} is no parameter of {kind}"))
    warmup = params.get("warmup_type")
    if warmup is None:
        result.notes.append(f"{result.label}: warm-up is linear here (DeepSpeed's {kind} is logarithmic by default)")
    elif warmup != "linear":
        origin = f"{result.label}: scheduler.params.warmup_type"
        result.problems.append(
            Problem(
                f"warm-up is linear here, not {quoted(warmup)}",
                (Source("warmup_type", str(warmup), origin),),
                'write "warmup_type": "linear"',
            )
        )
    if params.get("last_batch_iteration", -1) != -1:
        result.problems.append(
            Problem(
                f"{result.label}: scheduler.params.last_batch_iteration is refused: a resumed run takes its place from "
                "the checkpoint",
                advice="remove the key",
            )
        )
    _read_cosine_floor(result, params.get("cos_min_ratio"))


def _read_cosine_floor(result: DeepSpeedFile, ratio: Any) -> None:
    key = "scheduler.params.cos_min_ratio"
    if ratio == AUTO:
        result.autos[key] = "optimizer.min_lr"
    elif isinstance(ratio, (int, float)) and not isinstance(ratio, bool) and 0 <= ratio <= 1:
        result.cos_min_ratio = Given(float(ratio), f"{result.label}: {key}")
    elif ratio is not None:
        result.problems.append(wrong_value(key, ratio, f"{result.label}: {key}", "a number from 0 to 1"))


def _read_accumulation(result: DeepSpeedFile, content: Mapping[str, Any]) -> None:
    key = "gradient_accumulation_steps"
    steps = _lookup(content, key)
    if steps == AUTO:
        result.autos[key] = "the batch sizes"
    elif POSITIVE.accepts(steps):
        result.accumulation = Given(int(steps), f"{result.label}: {key}")
    elif steps is not None:
        result.problems.append(wrong_value(key, steps, f"{result.label}: {key}", POSITIVE.wanted))
