"""Writing Megatron's own files: ``iter_*/mp_rank_TT[_PPP]/model_optim_rng.pt``.

Source: NVIDIA Megatron-LM, megatron/checkpointing.py and megatron/training/checkpointing.py (`get_checkpoint_name`,
`save_checkpoint`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from megatron_ds.checkpoint.megatron.cut import Cut, save
from megatron_ds.checkpoint.megatron.names import Spelling

# Beside these core keeps states of its own, which are empty.
_MATRICES = (
    "attention.query_key_value.weight",
    "attention.dense.weight",
    "mlp.dense_h_to_4h.weight",
    "mlp.dense_4h_to_h.weight",
)
_ON_THE_LAST_STAGE = ("final_layernorm", "lm_head", "pooler", "binary_head", "classification_head")


@dataclass(frozen=True)
class ClassicWriter:
    """Writes one file for each rank of a model.

    Attributes:
        cut: the weights and how they are cut.
        spelling: their names.
        pp_size: pipeline stages of the files.
        arguments: that the files state.
        iteration: that the files state.
    """

    cut: Cut
    spelling: Spelling
    pp_size: int
    arguments: Namespace
    iteration: int

    def write(self, output: Path) -> Path:
        """Writes all files below `output`, one at a time; returns their folder."""
        folder = output / f"iter_{self.iteration:07d}"
        ranks = [(stage, rank) for stage in range(self.pp_size) for rank in range(self.cut.tp_size)]
        for stage, rank in tqdm(ranks, desc="export", unit="file", disable=None):
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if self.pp_size > 1 else "")
            save(self._content(stage, rank), folder / name / "model_optim_rng.pt")
        return folder

    def _content(self, stage: int, rank: int) -> dict[str, Any]:
        flat = dict(self._entries(stage, rank))
        return {
            "args": self.arguments,
            "checkpoint_version": self.cut.order.checkpoint_version,
            "iteration": self.iteration,
            "model": flat if self.spelling.extra_states else _nested(flat),
        }

    def _entries(self, stage: int, rank: int) -> Iterator[tuple[str, Tensor | None]]:
        model = self.cut.weights.model
        per_stage = model.num_layers // self.pp_size
        is_first, is_last = stage == 0, stage == self.pp_size - 1
        for name in self.cut.weights.specs:
            head, _, rest = name.partition(".")
            if head == "layers":
                number, _, inner = rest.partition(".")
                local = int(number) - stage * per_stage
                if 0 <= local < per_stage:
                    yield from self._block_entries(name, f"{self.spelling.blocks}.{local}.", inner, rank)
            elif is_last if head in _ON_THE_LAST_STAGE else is_first:
                yield self.spelling.of_stage(name), self.cut.shard(name, rank)
        has_tied_head = model.output_head == "lm" and not model.untie_embeddings_and_output_weights
        if is_last and not is_first and has_tied_head:
            yield self.spelling.head_copy, self.cut.shard("word_embeddings.weight", rank)

    def _block_entries(self, name: str, prefix: str, inner: str, rank: int) -> Iterator[tuple[str, Tensor | None]]:
        theirs = prefix + self.spelling.of_block(inner)
        yield theirs, self.cut.shard(name, rank)
        if self.spelling.extra_states and inner in _MATRICES:
            yield theirs.removesuffix("weight") + "_extra_state", None


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
