"""`manifest.json`: what a checkpoint holds, in words that need no torch to read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from megatron_ds.checkpoint.hashed_file import replace_text
from megatron_ds.checkpoint.manifest_check import check_content
from megatron_ds.config.blocks import RunConfig

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class Layout:
    """How the files of a checkpoint are cut.

    Attributes:
        tp_size: tensor-parallel size.
        pp_size: pipeline stages.
        dp_size: data-parallel size.
        zero_stage: ZeRO stage.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """

    tp_size: int
    pp_size: int
    dp_size: int
    zero_stage: int
    precision: str

    @classmethod
    def of(cls, run: RunConfig) -> Layout:
        """The layout that a run has."""
        parallel = run.parallel
        return cls(
            parallel.tensor_model_parallel_size,
            parallel.pipeline_model_parallel_size,
            run.dp_size,
            run.zero_stage,
            run.training.precision,
        )

    def __str__(self) -> str:
        return f"TP{self.tp_size} x PP{self.pp_size} x DP{self.dp_size}, ZeRO-{self.zero_stage}, {self.precision}"


@dataclass(frozen=True)
class Manifest:
    """Contents of a checkpoint.

    Attributes:
        progress: step, skipped_steps and consumed_samples, as the engine counts them.
        layout: how the files are cut.
        model: the architecture's options, vocabulary size included.
        parameters: canonical name → how it is cut (`megatron_ds.mpu.ShardSpec` as JSON).
        options: every option of the run that saved, by block.
        training_order: what the order of its samples depends on (`megatron_ds.data.TrainingOrder` as JSON); empty where
            that is not known.
        files: size and SHA-256 of each file, by its path inside of the checkpoint's folder (`FileRecord` as JSON);
            empty where they are not known.
        layers: for each entry of the model's list of layers, the name of the layer whose weights it uses.
        stages: for each pipeline stage, the first of its layers in that list and the one after its last.
        kind: ``deepspeed`` (files as DeepSpeed's engines write them) or ``parameters`` (as this project's tools do).
        has_optimizer: fp32 weights and moments are there, not only weights.
        loss_scaler: fp16: the state of dynamic loss scaling.
        score: of a finetuned model, what checkpoints are compared by, higher is better; None where it is not known.
        metrics: of a finetuned model, by ``set.metric``.
        format_version: of this file.
    """

    progress: dict[str, int]
    layout: Layout
    model: dict[str, Any]
    parameters: dict[str, dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    training_order: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    stages: list[list[int]] = field(default_factory=list)
    kind: Literal["deepspeed", "parameters"] = "deepspeed"
    has_optimizer: bool = True
    loss_scaler: dict[str, float] = field(default_factory=dict)
    score: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        """Writes the file whole or not at all, and waits until it is on disk."""
        replace_text(folder / MANIFEST_NAME, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a checkpoint's folder.

        Raises:
            OSError: there is none.
            ValueError: it is not a manifest of a version that this code knows, or was changed so that it means nothing.
        """
        content = json.loads((folder / MANIFEST_NAME).read_text())
        if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"not a manifest of format version {FORMAT_VERSION}")
        check_content(content)
        return cls(**{**content, "layout": Layout(**content["layout"])})
