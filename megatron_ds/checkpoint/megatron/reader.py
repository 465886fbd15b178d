"""Joining one parameter from the shards of all tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from megatron_ds.checkpoint.megatron.found import Place, ReadSection, TheirCheckpoint
from megatron_ds.checkpoint.megatron.row_order import RowOrder
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.mpu import ShardSpec
from megatron_ds.utils.logging import logger

# Names listed in a message before it says how many more there are.
_MOST_NAMES = 6


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


class JoiningReader:
    """Joins one parameter from the shards of all tensor-parallel ranks.

    Args:
        their: the checkpoint.
        specs: how each parameter is cut.
        order: how their rows are ordered.
        sections: reads a state dict of a file.
        average_copies: take the mean where tensor-parallel ranks hold different copies of what they share.
    """

    def __init__(
        self,
        their: TheirCheckpoint,
        specs: Mapping[str, ShardSpec],
        order: RowOrder,
        sections: ReadSection,
        *,
        average_copies: bool = False,
    ) -> None:
        self.their = their
        self.specs = specs
        self.order = order
        self.sections = sections
        self.average_copies = average_copies
        self._told_of_drift = False

    def read(self, name: str) -> Tensor:
        """The whole parameter of a name.

        Raises:
            CheckpointError: a file lacks it, or ranks have shards that don't go together.
        """
        spec = self.specs[name]
        shards = [self.order.to_ours(shard, spec) for shard in self._shards(self.their.places[name])]
        if len(shards) == 1 and spec.kind != "vocab":
            return shards[0]
        if spec.dim is None:
            return self._agreed(name, shards)
        copy = self.their.head_copy
        if name == "word_embeddings.weight" and copy is not None:
            self._check_copy(shards, self._shards(copy))
        return spec.unshard(shards)

    def check_shapes(self) -> None:
        """Compares all shapes with the model's.

        Raises:
            CheckpointError: one report with every parameter that has another shape.
        """
        wrong = list(self._wrong_shapes())
        if wrong:
            raise CheckpointError(
                Problem(
                    f"weights have other shapes than the model described in {self.their.origin}: {some(wrong)}",
                    advice="describe the model with --model FILE.json, if the file's arguments are not of its weights",
                )
            )

    def _wrong_shapes(self) -> Iterator[str]:
        for name, spec in self.specs.items():
            place = self.their.places[name]
            tp_size = len(place.files)
            shape = tuple(self._shard(place, 0).shape)
            if spec.kind == "vocab":
                fits = shape[1:] == spec.full_shape[1:] and shape[0] * tp_size >= spec.full_shape[0]
            else:
                fits = shape == spec.local_shape(tp_size) and (spec.groups or tp_size) % tp_size == 0
            if not fits:
                yield f"{place.name} is {list(shape)} on each of {tp_size} ranks, for {list(spec.full_shape)} in all"

    def _shards(self, place: Place) -> list[Tensor]:
        return [self._shard(place, rank) for rank in range(len(place.files))]

    def _shard(self, place: Place, rank: int) -> Tensor:
        found = self.sections(place.files[rank], place.section).get(place.name)
        if found is None:
            raise CheckpointError(Problem(f"{place.files[rank]} lacks {place.name}, which the file of rank 0 has"))
        return found

    def _agreed(self, name: str, copies: Sequence[Tensor]) -> Tensor:
        """One value of what every rank has a copy of.

        BLOOM's copies drifted apart in training; its converter averages them (transformers,
        convert_bloom_original_checkpoint_to_pytorch.py). A damaged file looks the same, so the user has to ask for it.

        Raises:
            CheckpointError: the copies differ, and their mean is not asked for.
        """
        first = copies[0]
        if all(torch.equal(first, copy) for copy in copies[1:]):
            return first
        mean = torch.stack([copy.float() for copy in copies]).mean(0)
        largest = max(float((copy.float() - mean).abs().max()) for copy in copies)
        if not self.average_copies:
            raise CheckpointError(
                Problem(
                    f"{name} is not the same on all {len(copies)} tensor-parallel ranks: copies are up to "
                    f"{largest:.2g} from their mean",
                    advice="where training is known to have let copies drift apart (BLOOM's norms), give "
                    "--average-copies; else a file is damaged",
                )
            )
        if not self._told_of_drift:
            self._told_of_drift = True
            logger.warning(
                "%s differs between TP ranks by up to %.2g; the mean is taken, here and for others like it",
                name,
                largest,
            )
        return mean.to(first.dtype)

    def _check_copy(self, embeddings: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
        if any(not torch.equal(one, copy) for one, copy in zip(embeddings, copies, strict=True)):
            raise CheckpointError(
                Problem(
                    f"the head's weights in {self.their.head_copy and self.their.head_copy.files[0]} are not those of "
                    "the embeddings, and the model is described as one that ties them",
                    advice="set untie_embeddings_and_output_weights in the file of --model, if the head has its own",
                )
            )
