"""One rank's shard of a parameter, as the files of an export hold it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_ds.checkpoint.hashed_file import HashedFile
from megatron_ds.checkpoint.megatron.row_order import RowOrder
from megatron_ds.checkpoint.weights import ModelWeights


@dataclass(frozen=True)
class Cut:
    """How the weights of a whole model are cut for an export.

    Attributes:
        weights: of the whole model.
        order: their order of rows.
        tp_size: tensor-parallel size of the files.
    """

    weights: ModelWeights
    order: RowOrder
    tp_size: int

    def shard(self, name: str, rank: int) -> Tensor:
        """A rank's shard of our parameter, in memory of its own: torch.save writes all that a view looks at."""
        spec = self.weights.specs[name]
        if spec.kind == "vocab":
            # The padding depends on the tensor-parallel size.
            spec = replace(spec, padded_rows=self.weights.model.padded_vocab_size(self.tp_size))
        shard = spec.shard(self.weights.read(name), rank, self.tp_size)
        return self.order.to_theirs(shard, spec).clone(memory_format=torch.contiguous_format)


def save(content: dict[str, Any], path: Path) -> None:
    """Writes a file, and its folders, to the disk.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Given a path, PyTorch raises a RuntimeError that doesn't tell why.
    with HashedFile(path) as file:
        torch.save(content, file)  # type: ignore[arg-type]
        file.complete()
