"""Checkpoints that tools write: a layer at a time, for any tensor-parallel size. `parameter_files` reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_ds.checkpoint.deepspeed_files import layer_file
from megatron_ds.checkpoint.find import LATEST, point_latest_at
from megatron_ds.checkpoint.hashed_file import FileRecord, HashedFile, replace_text
from megatron_ds.checkpoint.manifest import MANIFEST_NAME, Layout, Manifest
from megatron_ds.checkpoint.names import Names
from megatron_ds.checkpoint.parameter_files import parameter_file
from megatron_ds.checkpoint.weights import ModelWeights, layer_owners, model_specs
from megatron_ds.checkpoint.zero_pieces import STATES, Kind
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.layout import layout_problems
from megatron_ds.config.partition import even_counts, stage_bounds
from megatron_ds.config.rules.common import PP, TP
from megatron_ds.config.settings import Given
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ShardSpec, Topology

# The model's options, beside the checkpoint: a preset for the run that trains on.
MODEL_PRESET_NAME = "model.json"

_THREADS = 4

# From the numbers of the layers to the same numbers, telling someone how far it is.
Watch = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class TrainingState:
    """What a checkpoint holds besides weights.

    Attributes:
        read: a whole state of a parameter: ``fp32``, ``exp_avg`` or ``exp_avg_sq``.
        progress: step, skipped_steps and consumed_samples.
        training_order: see `Manifest`.
        loss_scaler: see `Manifest`.
    """

    read: Callable[[str, Kind], Tensor]
    progress: dict[str, int]
    training_order: dict[str, Any] = field(default_factory=dict)
    loss_scaler: dict[str, float] = field(default_factory=dict)


def write_checkpoint(
    output: Path,
    weights: ModelWeights,
    *,
    options: Mapping[str, Any],
    precision: str,
    tp_size: int = 1,
    pp_size: int = 1,
    state: TrainingState | None = None,
    watch: Watch = iter,
) -> Path:
    """Writes a checkpoint that any layout can load, and beside it a preset with the model's options.

    Args:
        output: folder of a run to be; it must not hold one yet.
        weights: the model.
        options: every option of the run that trained it, by block; may be empty.
        precision: ``fp32``, ``bf16`` or ``fp16``: the dtype that weights are written in.
        tp_size: tensor-parallel ranks that the files with weights are cut for.
        pp_size: pipeline stages that the manifest tells of; the files are by layer, whatever their number.
        state: the optimizer's; None for weights only.
        watch: goes over the layers' numbers, to show progress.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: `output` holds a run already, can't be written to, or the model can't be cut so.
    """
    is_new = not output.exists()
    if not is_new and not output.is_dir():
        advice = "give a folder that is new or empty to --output"
        raise CheckpointError(Problem(f"{output} is a file, and a checkpoint is a folder", advice=advice))
    if (output / LATEST).exists() or list(output.glob(f"*/{MANIFEST_NAME}")):
        advice = "give another folder to --output"
        raise CheckpointError(Problem(f"{output} already holds checkpoints", advice=advice))
    if problems := _cut_problems(weights.model, tp_size, pp_size):
        raise CheckpointError(problems)
    manifest = _manifest(weights, options, precision, (tp_size, pp_size), state)
    folder = output / f"global_step{manifest.progress['step']}"
    try:
        # Of an attempt that was cut short.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files: dict[str, FileRecord] = {}
        names = Names(manifest)
        specs = {name: ShardSpec.from_json(spec) for name, spec in manifest.parameters.items()}
        # Disk, hash and copies overlap; more threads would only hold more of a layer in memory.
        with ThreadPoolExecutor(_THREADS, "writing") as pool:
            for layer in watch(range(len(manifest.layers))):
                own = {names.suffix(name): name for name in names.of_layer(layer)}
                jobs = [pool.submit(_write_layer, folder, layer, own, weights, specs, precision, tp_size)]
                if state is not None:
                    jobs += [pool.submit(_write_state, folder, name, state) for name in own.values()]
                for job in jobs:
                    files |= job.result()
        recorded = {name: asdict(record) for name, record in files.items()}
        Manifest(**{**vars(manifest), "files": recorded}).write(folder)
        replace_text(output / MODEL_PRESET_NAME, _preset(weights.model))
        point_latest_at(output, folder.name)
    except BaseException as error:
        # Weights that can't be read end here too.
        shutil.rmtree(output if is_new else folder, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            Problem(f"{error.filename or folder} can't be written: {error.strerror}", advice="see that there is room")
        ) from error
    return folder


def _write_layer(
    folder: Path,
    layer: int,
    own: Mapping[str, str],
    weights: ModelWeights,
    specs: Mapping[str, ShardSpec],
    precision: str,
    tp_size: int,
) -> dict[str, FileRecord]:
    """Writes a layer's weights for each tensor-parallel rank; nothing where the layer has none of its own."""
    if not own:
        return {}
    whole = {suffix: weights.read(name).to(COMPUTE_DTYPES[precision]) for suffix, name in own.items()}
    files = {}
    for rank in range(tp_size):
        shards = {suffix: specs[own[suffix]].shard(tensor, rank, tp_size) for suffix, tensor in whole.items()}
        files[layer_file(layer, rank)] = _save(folder / layer_file(layer, rank), shards)
    return files


def _write_state(folder: Path, name: str, state: TrainingState) -> dict[str, FileRecord]:
    """Writes the states of one parameter."""
    files = {}
    for kind in STATES:
        file = parameter_file(name, kind)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        files[file] = _save(folder / file, {"param": state.read(name, kind)})
    return files


def _preset(model: ModelConfig) -> str:
    """A file for ``--model-preset``: as people write them, without what follows from other options."""
    return json.dumps(model.model_dump(exclude_defaults=True), indent=2) + "\n"


def _save(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    with HashedFile(path) as file:
        torch.save({name: _alone(tensor) for name, tensor in tensors.items()}, file)  # type: ignore[arg-type]
        return file.complete()


def _alone(tensor: Tensor) -> Tensor:
    """A tensor without the rest of the memory that it may be a view of: PyTorch would save all of it."""
    is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if is_whole else tensor.clone(memory_format=torch.contiguous_format)


def _manifest(
    weights: ModelWeights,
    options: Mapping[str, Any],
    precision: str,
    sizes: tuple[int, int],
    state: TrainingState | None,
) -> Manifest:
    tp_size, pp_size = sizes
    specs = model_specs(weights.model, Topology(tp_size, pp_size))
    layers = layer_owners(weights.model)
    is_transformer_layer = [layer.startswith("layers.") for layer in layers]
    bounds = stage_bounds(is_transformer_layer, even_counts(weights.model.num_layers, pp_size))
    return Manifest(
        progress=state.progress if state else {"step": 0, "skipped_steps": 0, "consumed_samples": 0},
        layout=Layout(tp_size, pp_size, 1, 0, precision),
        model=weights.model.model_dump(),
        parameters={name: spec.to_json() for name, spec in specs.items()},
        options={**options, "model": weights.model.model_dump()},
        training_order=state.training_order if state else {},
        layers=layers,
        stages=[list(stage) for stage in pairwise(bounds)],
        kind="parameters",
        has_optimizer=state is not None,
        loss_scaler=state.loss_scaler if state else {},
    )


def _cut_problems(model: ModelConfig, tp_size: int, pp_size: int) -> list[Problem]:
    """Why a model can't be cut for so many ranks."""
    parallel = {TP: Given(tp_size, "the layout to write"), PP: Given(pp_size, "the layout to write")}
    return layout_problems(model, "the checkpoint", parallel, Given(tp_size * pp_size, "TP x PP"))
