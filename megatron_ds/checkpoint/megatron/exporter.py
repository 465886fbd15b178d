"""`export_megatron`: our weights as files that Megatron-LM loads."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from megatron_ds.checkpoint.megatron.expressible import LayoutName, arguments_of, check_expressible
from megatron_ds.checkpoint.megatron.names import CLASSIC, CLASSIC_NORMS, Spelling, core_spelling
from megatron_ds.checkpoint.megatron.row_order import RowOrder
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.errors import CheckpointError, ConfigError, Problem
from megatron_ds.mpu import ShardSpec
from megatron_ds.utils.logging import logger

VERSIONS = (0.0, 1.0, 2.0, 3.0)
_TRACKER = "latest_checkpointed_iteration.txt"


def export_megatron(
    weights: ModelWeights,
    output: Path,
    *,
    tp_size: int = 1,
    pp_size: int = 1,
    layout: LayoutName = "core",
    checkpoint_version: float = 3.0,
    transformer_impl: str = "transformer_engine",
    iteration: int = 0,
) -> None:
    """Writes ``iter_*/mp_rank_*/model_optim_rng.pt`` and the tracker file.

    One file is put together at a time, so the memory is that of the largest file: the model over TP x PP.

    Args:
        weights: of the model.
        output: a folder without a checkpoint of Megatron's.
        tp_size: tensor-parallel size of the files.
        pp_size: pipeline stages of the files.
        layout: ``core`` for Megatron core's models, ``classic`` for those before it.
        checkpoint_version: 3, or for old code 0, 1 or 2 (classic only), which order queries, keys and values otherwise.
        transformer_impl: core's layers, ``transformer_engine`` or ``local``; they name norms differently.
        iteration: that the files state.

    Raises:
        ConfigError: the model has options that the layout can't express (all in one report), or sizes don't divide.
        CheckpointError: there is a checkpoint in the folder, or it can't be written.
    """
    model = weights.model
    check_expressible(model, layout, tp_size, pp_size)
    _check_version(model, layout, checkpoint_version, pp_size)
    if (output / _TRACKER).exists():
        raise CheckpointError(
            Problem(f"{output} holds a checkpoint of Megatron's already", advice="give another --output")
        )
    writer = _Writer(
        weights,
        _spelling(model, layout, transformer_impl),
        RowOrder(checkpoint_version),
        tp_size,
        pp_size,
    )
    dtype = weights.read("word_embeddings.weight").dtype
    arguments = arguments_of(
        model, layout=layout, tp_size=tp_size, pp_size=pp_size, transformer_impl=transformer_impl, dtype=dtype
    )
    folder = output / f"iter_{iteration:07d}"
    ranks = [(stage, rank) for stage in range(pp_size) for rank in range(tp_size)]
    for stage, rank in tqdm(ranks, desc="export", unit="file", disable=None):
        name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp_size > 1 else "")
        _save(writer.content(stage, rank, arguments, iteration), folder / name / "model_optim_rng.pt")
    # Last, so that an interrupted export is none.
    partial = output / f"{_TRACKER}.partial"
    partial.write_text(str(iteration))
    partial.replace(output / _TRACKER)
    logger.info(
        "wrote %d files to %s; weights only: load them with --no-load-optim --no-load-rng, or --finetune",
        len(ranks),
        folder,
    )


def _check_version(model: ModelConfig, layout: LayoutName, version: float, pp_size: int) -> None:
    problems = []
    if version not in VERSIONS:
        problems.append(Problem(f"there is no checkpoint version {version:g}", advice="use 3"))
    if layout == "core" and version != 3:
        problems.append(Problem(f"core's files have checkpoint version 3, not {version:g}", advice="use 3"))
    if version < 2 and model.num_kv_heads != model.num_attention_heads:
        problems.append(
            Problem(
                f"num_query_groups={model.num_query_groups} can't be written as version {version:g}", advice="use 3"
            )
        )
    if version < 2 and pp_size > 1:
        problems.append(
            Problem(f"version {version:g} has no pipelines; the export has {pp_size} stages", advice="use 2 or 3")
        )
    if problems:
        raise ConfigError(problems)


def _spelling(model: ModelConfig, layout: LayoutName, transformer_impl: str) -> Spelling:
    if layout == "core":
        return core_spelling(transformer_engine=transformer_impl == "transformer_engine")
    return CLASSIC_NORMS if model.normalization == "RMSNorm" else CLASSIC


def _save(content: dict[str, Any], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            Problem(f"{path} can't be written: {error}", advice="make room, and export again")
        ) from error


@dataclass(frozen=True)
class _Writer:
    """Puts the content of one file together.

    Attributes:
        weights: of the whole model.
        spelling: their names.
        order: their order of rows.
        tp_size: tensor-parallel size of the files.
        pp_size: pipeline stages of the files.
    """

    weights: ModelWeights
    spelling: Spelling
    order: RowOrder
    tp_size: int
    pp_size: int

    def content(self, stage: int, rank: int, arguments: Namespace, iteration: int) -> dict[str, Any]:
        """What Megatron finds in the file of a stage and a tensor-parallel rank."""
        flat = dict(self._entries(stage, rank))
        return {
            "args": arguments,
            "checkpoint_version": self.order.checkpoint_version,
            "iteration": iteration,
            "model": flat if self.spelling.extra_states else _nested(flat),
        }

    def _entries(self, stage: int, rank: int) -> Iterator[tuple[str, Tensor | None]]:
        per_stage = self.weights.model.num_layers // self.pp_size
        is_first, is_last = stage == 0, stage == self.pp_size - 1
        for name in self.weights.specs:
            head, _, rest = name.partition(".")
            if head == "layers":
                number, _, inner = rest.partition(".")
                local = int(number) - stage * per_stage
                if 0 <= local < per_stage:
                    prefix = f"{self.spelling.blocks}.{local}."
                    yield prefix + self.spelling.of_block(inner), self._shard(name, rank)
                    if self.spelling.extra_states and inner.endswith(_MATRICES):
                        yield prefix + self.spelling.of_block(inner).removesuffix("weight") + "_extra_state", None
            elif is_last if head in ("final_layernorm", "lm_head") else is_first:
                yield self.spelling.of_stage(name), self._shard(name, rank)
        if is_last and not is_first and not self.weights.model.untie_embeddings_and_output_weights:
            yield self.spelling.head_copy, self._shard("word_embeddings.weight", rank)

    def _shard(self, name: str, rank: int) -> Tensor:
        spec = self._spec(name)
        shard = spec.shard(self.weights.read(name), rank, self.tp_size)
        # A copy: torch.save would write all of the tensor that a view looks at.
        return self.order.to_theirs(shard, spec).clone(memory_format=torch.contiguous_format)

    def _spec(self, name: str) -> ShardSpec:
        """How the parameter is cut at the export's tensor-parallel size, which decides on the padding."""
        spec = self.weights.specs[name]
        if spec.kind != "vocab":
            return spec
        return ShardSpec("vocab", spec.full_shape, 0, padded_rows=self.weights.model.padded_vocab_size(self.tp_size))


_MATRICES = (
    "attention.query_key_value.weight",
    "attention.dense.weight",
    "mlp.dense_h_to_4h.weight",
    "mlp.dense_4h_to_h.weight",
)


def _nested(flat: dict[str, Tensor | None]) -> dict[str, Any]:
    """The dicts in dicts of `state_dict_for_save_checkpoint`: one for each outer module, flat inside of it."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        outer, inner = _split(name)
        level = nested
        for key in outer:
            level = level.setdefault(key, {})
        level[inner] = value
    return nested


def _split(name: str) -> tuple[list[str], str]:
    keys = name.split(".")
    if keys[:2] == ["language_model", "embedding"]:
        return keys[:3], ".".join(keys[3:])
    depth = 2 if keys[0] == "language_model" else 1
    return keys[:depth], ".".join(keys[depth:])
