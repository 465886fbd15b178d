"""Whether the content of a `manifest.json` is one that the code behind can work with, whoever has edited the file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from megatron_ds.config.blocks import ModelConfig

_Count = Annotated[int, Field(ge=0)]
_Size = Annotated[int, Field(ge=1)]
_Range = Annotated[list[_Count], Field(min_length=2, max_length=2)]

# Blocks of options that a run is compared with when it goes on.
_COMPARED = ("model", "data", "training", "optimizer")


class _Strict(BaseModel):
    """JSON of exactly these types and names: ``true`` and ``"4"`` are no numbers."""

    model_config = ConfigDict(strict=True, extra="forbid")


class _Progress(_Strict):
    step: _Count
    skipped_steps: _Count
    consumed_samples: _Count

    @model_validator(mode="after")
    def _steps(self) -> _Progress:
        if self.skipped_steps > self.step:
            raise ValueError(f"{self.skipped_steps} steps can't be skipped in {self.step}")
        return self


class _Layout(_Strict):
    tp_size: _Size
    pp_size: _Size
    dp_size: _Size
    zero_stage: Annotated[int, Field(ge=0, le=3)]
    precision: Literal["fp32", "bf16", "fp16"]


class _Shard(_Strict):
    """`megatron_ds.mpu.ShardSpec`, which needs torch, as JSON."""

    kind: Literal["replicated", "column", "row", "vocab", "qkv_groups", "gated_pair"]
    full_shape: list[_Size]
    dim: _Count | None = None
    padded_rows: _Size | None = None
    groups: _Size | None = None
    head_rows: _Size | None = None

    @model_validator(mode="after")
    def _fits(self) -> _Shard:
        if (self.kind == "replicated") != (self.dim is None):
            raise ValueError(f"{self.kind} has dim {self.dim}")
        if self.dim is not None and self.dim >= len(self.full_shape):
            raise ValueError(f"shape {self.full_shape} has no dimension {self.dim}")
        has_groups, has_heads = self.groups is not None, self.head_rows is not None
        if not (self.kind == "qkv_groups") == has_groups == has_heads:
            raise ValueError(f"{self.kind} has groups {self.groups} and head_rows {self.head_rows}")
        if (self.kind == "vocab") != (self.padded_rows is not None):
            raise ValueError(f"{self.kind} has padded_rows {self.padded_rows}")
        if self.padded_rows is not None and self.padded_rows < self.full_shape[0]:
            raise ValueError(f"{self.full_shape[0]} rows are more than {self.padded_rows} padded ones")
        return self

    def check_cut(self, tp_size: int) -> None:
        """Raises ValueError where the parameter can't be cut for so many ranks."""
        if self.dim is None:
            return
        rows = self.padded_rows or self.full_shape[self.dim]
        if rows % tp_size or (self.kind == "gated_pair" and rows % (2 * tp_size)):
            raise ValueError(f"{rows} rows can't be cut for {tp_size} ranks")
        if self.groups is not None and self.head_rows is not None:
            sharing = max(1, tp_size // self.groups)
            if max(tp_size, self.groups) % min(tp_size, self.groups) or rows % self.groups or self.head_rows % sharing:
                raise ValueError(f"{self.groups} groups in {rows} rows can't be cut for {tp_size} ranks")
            if rows // self.groups <= 2 * self.head_rows:
                raise ValueError(f"{self.groups} groups in {rows} rows have no room for heads of {self.head_rows}")


class _File(_Strict):
    bytes: _Count
    sha256: str
    sample: str | None = None


class _OrderedPart(BaseModel):
    """What is missing or not known is another version's; what is there has to be of its type."""

    model_config = ConfigDict(strict=True)

    name: str = ""
    share: float = 0.0
    documents: _Range = [0, 0]
    num_tokens: _Count = 0
    digest: str = ""


class _Order(BaseModel):
    """`megatron_ds.data.TrainingOrder` as JSON, or that of another version."""

    model_config = ConfigDict(strict=True)

    parts: list[_OrderedPart] = []
    seq_length: int = 0
    seed: int = 0
    dataloader_type: str = ""
    num_samples: int | None = None


class _Content(_Strict):
    progress: _Progress
    layout: _Layout
    model: dict[str, Any]
    parameters: dict[str, _Shard]
    options: dict[str, Any] = {}
    training_order: _Order = _Order()
    files: dict[str, _File] = {}
    layers: list[str] = []
    stages: list[_Range] = []
    kind: Literal["deepspeed", "parameters"] = "deepspeed"
    has_optimizer: bool = True
    loss_scaler: dict[str, float] = {}
    score: float | None = None
    metrics: dict[str, float] = {}
    format_version: int


def check_content(content: dict[str, Any]) -> None:
    """Checks the parsed manifest of a checkpoint.

    Args:
        content: of the file.

    Raises:
        ValueError: something in it is not as the code writes it. Says where, in one line.
    """
    try:
        checked = _Content.model_validate(content)
    except ValidationError as error:
        raise ValueError(_first_reason(error)) from error
    try:
        ModelConfig.model_validate(content["model"])
    except ValidationError as error:
        raise ValueError(f"it describes no model that this version knows: {_first_reason(error)}") from error
    for block in _COMPARED:
        if not isinstance(checked.options.get(block, {}), dict):
            raise ValueError(f"options.{block}: it is no object")
    for name in checked.files:
        _check_path(name)
    _check_layers(checked)
    for name, shard in checked.parameters.items():
        try:
            shard.check_cut(checked.layout.tp_size)
        except ValueError as error:
            raise ValueError(f"parameters.{name}: {error}") from error


def _check_path(name: str) -> None:
    """A listed file lies inside of the checkpoint's folder."""
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts or not _is_text(name):
        raise ValueError(f"files: {name!r} is no path inside of the folder")


def _is_text(name: str) -> bool:
    """JSON can spell halves of characters, which no file system takes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_layers(checked: _Content) -> None:
    """Each parameter has a layer, and each layer a stage."""
    if not (checked.parameters or checked.layers or checked.stages):
        return
    layers = set(checked.layers)
    for name in checked.parameters:
        parts = name.split(".")
        if not _is_text(name) or not any(".".join(parts[:end]) in layers for end in range(1, len(parts))):
            raise ValueError(f"parameters.{name!r}: it belongs to none of the layers")
    if len(checked.stages) != checked.layout.pp_size:
        raise ValueError(f"{len(checked.stages)} stages are not those of PP{checked.layout.pp_size}")
    bounds = [0, *(stop for _, stop in checked.stages)]
    starts = [start for start, _ in checked.stages]
    if starts != bounds[:-1] or bounds[-1] != len(checked.layers) or any(a > b for a, b in pairwise(bounds)):
        raise ValueError(f"stages {checked.stages} do not cover {len(checked.layers)} layers one after the other")


def _first_reason(error: ValidationError) -> str:
    """Where the first thing is wrong, and why."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    reason = first["msg"].removeprefix("Value error, ")
    return f"{place}: {reason}" if place else reason
