"""Writing the folders of DeepSpeed's pipelines that the Megatron-DeepSpeed forks load, in each fork's numbering.

Sources: `GPTModelPipe` in megatron/model/gpt_model.py of bigscience and Microsoft Megatron-DeepSpeed; DeepSpeed,
deepspeed/runtime/{engine,pipe/module}.py.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from megatron_ds.checkpoint.megatron.cut import Cut, save
from megatron_ds.checkpoint.megatron.found import MODEL_KEY
from megatron_ds.checkpoint.megatron.names import PIPELINE


@dataclass(frozen=True)
class Numbering:
    """A fork's list of layers, steps without weights included: embeddings are at 1.

    Attributes:
        first_block: number of the first block.
        norm_gap: how far the final norm is behind the last block.
    """

    first_block: int
    norm_gap: int

    def layer_of(self, name: str, num_layers: int) -> int:
        """The number of the layer that holds our parameter."""
        head, _, rest = name.partition(".")
        if head == "layers":
            return self.first_block + int(rest.partition(".")[0])
        norm = self.first_block + num_layers - 1 + self.norm_gap
        return {"final_layernorm": norm, "lm_head": norm + 1}.get(head, 1)


NUMBERINGS: Mapping[str, Numbering] = {
    # A step that swaps batch and sequence stands before the blocks, and one behind them.
    "bloom": Numbering(first_block=3, norm_gap=2),
    "microsoft": Numbering(first_block=2, norm_gap=1),
}


@dataclass(frozen=True)
class PipelineWriter:
    """Writes one file for each layer and tensor-parallel rank.

    Attributes:
        cut: the weights and how they are cut.
        numbering: of the layers.
        pp_size: stages of the run that will load them: the number of files that state progress depends on it.
        arguments: that the files state; None where the fork's can't be written without its code.
        iteration: that the files state.
    """

    cut: Cut
    numbering: Numbering
    pp_size: int
    arguments: Namespace | None
    iteration: int

    def write(self, output: Path) -> Path:
        """Writes all files below `output`, one at a time; returns their folder."""
        folder = output / f"global_step{self.iteration}"
        model = self.cut.weights.model
        layers: dict[int, list[str]] = {}
        for name in self.cut.weights.specs:
            layers.setdefault(self.numbering.layer_of(name, model.num_layers), []).append(name)
        files = [(number, rank) for number in sorted(layers) for rank in range(self.cut.tp_size)]
        for number, rank in tqdm(files, desc="export", unit="file", disable=None):
            state = {_name_in_layer(name): self.cut.shard(name, rank) for name in layers[number]}
            save(state, folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
        for rank in range(self.pp_size * self.cut.tp_size):
            save(self._states(), folder / f"mp_rank_{rank:02d}_model_states.pt")
        return folder

    def _states(self) -> dict[str, Any]:
        """What DeepSpeed's engine and the fork's `load_checkpoint` look for."""
        return {
            **({} if self.arguments is None else {"args": self.arguments}),
            "checkpoint_version": self.cut.order.checkpoint_version,
            "iteration": self.iteration,
            MODEL_KEY: self.cut.weights.model.model_dump(),
            "module": None,
            "buffer_names": [],
            "optimizer": None,
            "lr_scheduler": None,
            "sparse_tensor_module_names": [],
            "csr_tensor_module_names": [],
            "skipped_steps": 0,
            "global_steps": self.iteration,
            "global_samples": 0,
            "dp_world_size": 1,
            "mp_world_size": self.pp_size * self.cut.tp_size,
            "ds_config": {},
        }


def _name_in_layer(name: str) -> str:
    head, _, rest = name.partition(".")
    if head == "layers":
        return PIPELINE.of_block(rest.partition(".")[2])
    if head == "final_layernorm":
        return rest
    return PIPELINE.of_stage(name)
