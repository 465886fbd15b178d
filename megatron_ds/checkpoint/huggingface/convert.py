"""Weights between our names and layouts and theirs. One table is read in both directions, so they can't disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from megatron_ds.checkpoint.huggingface.architecture import Architecture
from megatron_ds.checkpoint.huggingface.read_files import TensorFiles
from megatron_ds.checkpoint.weights import ModelWeights, model_specs
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.mpu import ShardSpec
from megatron_ds.utils.logging import logger

_MOST_NAMES = 5


def their_shapes(
    architecture: Architecture, model: ModelConfig, specs: Mapping[str, ShardSpec]
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of theirs, in the order of our parameters."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, spec in specs.items():
        place = architecture.place(name, model.num_layers)
        parts = place.rule.layout.split(torch.empty(spec.full_shape, device="meta"), model)
        shapes |= {theirs: tuple(part.shape) for theirs, part in zip(place.theirs, parts, strict=True)}
    return shapes | dict.fromkeys(architecture.zero_tables_without(specs), (1, model.hidden_size))


def their_tensors(
    architecture: Architecture,
    weights: ModelWeights,
    unused_rows: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of theirs, one parameter of ours after the other.

    Args:
        architecture: a class that can express the model.
        weights: ours.
        unused_rows: by name of theirs, rows that an import found and that say nothing about the model.
    """
    for name in weights.specs:
        place = architecture.place(name, weights.model.num_layers)
        parts = place.rule.layout.split(weights.read(name), weights.model)
        for theirs, part in zip(place.theirs, parts, strict=True):
            kept = (unused_rows or {}).get(theirs)
            # Whole again, so that what came from transformers goes back to the bit.
            yield theirs, part if kept is None else torch.cat((kept.to(part.dtype), part[len(kept) :]))
    for theirs in architecture.zero_tables_without(weights.specs):
        # In the dtype of the last one.
        yield theirs, part.new_zeros(1, weights.model.hidden_size)


def cast_weights(weights: ModelWeights, dtype: torch.dtype | None) -> ModelWeights:
    """The same weights in another dtype; None: each keeps its own.

    Reading raises `CheckpointError` where a weight is too large for fp16.
    """
    if dtype is None:
        return weights

    def read(name: str) -> Tensor:
        tensor = weights.read(name)
        cast = tensor.to(dtype)
        if dtype == torch.float16 and bool(cast.isinf().any()) and not bool(tensor.isinf().any()):
            raise CheckpointError(
                Problem(
                    f"{name} has weights up to {float(tensor.abs().max()):.3g}, and fp16 ends at 65504",
                    advice="give --dtype bf16 or fp32",
                )
            )
        return cast

    return replace(weights, read=read)


@dataclass(frozen=True)
class FoundTensors:
    """Their tensors by the names that the class has for them, whatever they are called in the files.

    Attributes:
        files: the files.
        names: name of the class → name in the files.
    """

    files: TensorFiles
    names: Mapping[str, str]

    def read(self, name: str) -> Tensor:
        """A tensor by its name of the class."""
        return self.files.read(self.names[name])


def our_weights(architecture: Architecture, model: ModelConfig, files: TensorFiles, where: str) -> ModelWeights:
    """Their weights as ours, read when they are asked for.

    Args:
        architecture: their class.
        model: ours, with a vocabulary of as many tokens as their embeddings have rows.
        files: their files.
        where: their folder, for messages.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is one that the class does not have; or a tied
            head is not the embeddings. All of it in one report.
    """
    specs = model_specs(model)
    found = _found(architecture, files)
    shapes = their_shapes(architecture, model, specs)
    _check(found, shapes, _copies(architecture, model), architecture, where)
    if unused := [name for name in found.names if name not in shapes and architecture.is_unused(name)]:
        logger.warning("%s: %s: left out, because %s does not use them", where, _listed(unused), architecture.name)

    def read(name: str) -> Tensor:
        place = architecture.place(name, model.num_layers)
        return place.rule.layout.join([found.read(theirs) for theirs in place.theirs], model)

    return ModelWeights(model, specs, read)


def widest_dtype(architecture: Architecture, weights: ModelWeights, files: TensorFiles) -> torch.dtype:
    """The dtype in which none of their weights loses anything."""
    found = _found(architecture, files)
    dtypes = {
        dtype
        for name in weights.specs
        for theirs in architecture.place(name, weights.model.num_layers).theirs
        if (dtype := files.dtype(found.names[theirs])) is not None
    }
    return reduce(torch.promote_types, dtypes)


def read_unused_rows(architecture: Architecture, weights: ModelWeights, files: TensorFiles) -> dict[str, Tensor]:
    """By name of theirs, the rows of their tensors that our model has no place for."""
    found = _found(architecture, files)
    places = [(name, architecture.place(name, weights.model.num_layers)) for name in weights.specs]
    return {
        place.theirs[0]: found.read(place.theirs[0])[: place.rule.unused_rows].clone()
        for _, place in places
        if place.rule.unused_rows
    }


def _found(architecture: Architecture, files: TensorFiles) -> FoundTensors:
    has_prefix = any(name.startswith(architecture.prefix) for name in files.names)
    names = {architecture.name_in_class(name, has_prefix=has_prefix): name for name in files.names}
    for copy, original in architecture.copies.items():
        # Some files have the copy alone.
        if copy in names and original not in names:
            names[original] = names.pop(copy)
    return FoundTensors(files, names)


def _copies(architecture: Architecture, model: ModelConfig) -> dict[str, str]:
    """Names of tensors that files may hold a second time → names of the originals."""
    if model.untie_embeddings_and_output_weights:
        return dict(architecture.copies)
    embeddings = architecture.place("word_embeddings.weight", model.num_layers).theirs[0]
    return {f"{architecture.head}.weight": embeddings, **architecture.copies}


def _check(
    found: FoundTensors,
    shapes: Mapping[str, tuple[int, ...]],
    copies: Mapping[str, str],
    architecture: Architecture,
    where: str,
) -> None:
    problems = []
    if missing := [name for name in shapes if name not in found.names]:
        problems.append(Problem(f"{where} lacks {_listed(missing)}", advice="copy all files, or correct config.json"))
    known = {*shapes, *copies}
    extra = [
        name
        for name in found.names
        if name not in known and not architecture.is_buffer(name) and not architecture.is_unused(name)
    ]
    if extra:
        problems.append(
            Problem(
                f"{where} has {_listed(extra)}, for which {architecture.name} of its config.json has no place",
                advice="this is another architecture, or has parts that a model of ours has not",
            )
        )
    for name, shape in shapes.items():
        if name in found.names and (theirs := found.files.shape(found.names[name])) != shape:
            problems.append(Problem(f"{where}: {name} is {list(theirs)}, and config.json makes it {list(shape)}"))
    others = [name for name in shapes if name in found.names and found.files.dtype(found.names[name]) is None]
    if others:
        problems.append(
            Problem(
                f"{where}: {_listed(others)}: weights are fp32, bf16 or fp16, and these are not",
                advice="a quantized model can't be imported; take the one that it was made from",
            )
        )
    if not problems:
        problems += _other_copies(found, copies, architecture, where)
    if problems:
        raise CheckpointError(problems)


def _other_copies(
    found: FoundTensors, copies: Mapping[str, str], architecture: Architecture, where: str
) -> list[Problem]:
    if architecture.family == "gpt":
        advice = "put tie_word_embeddings false into config.json if the head has its own weights"
    else:
        advice = "this model can't be imported: ours has its head tied"
    return [
        Problem(f"{where}: config.json ties the output head, and {copy} is not {original}", advice=advice)
        for copy, original in copies.items()
        if copy in found.names and not torch.equal(found.read(copy), found.read(original))
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
