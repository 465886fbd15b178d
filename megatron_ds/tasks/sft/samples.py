"""Sequences of instruction tuning, and their micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from megatron_ds.data.batch import Batch, check_ids
from megatron_ds.tasks.sft.encode import SftExamples
from megatron_ds.tasks.sft.packing import pack


@dataclass(frozen=True)
class SftSample:
    """One sequence of S tokens.

    Attributes:
        tokens: inputs, int64 [S].
        labels: the token after each input in its example, int64 [S].
        loss_mask: 1 where a label is a token of a response, else 0, float32 [S].
        document_ids: number of the example that each input belongs to, from 0, padding having the next one,
            int32 [S]; None where a sequence has one example.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    loss_mask: NDArray[np.float32]
    document_ids: NDArray[np.int32] | None

    def as_filling(self) -> SftSample:
        """The same sequence with weight 0."""
        return replace(self, loss_mask=np.zeros_like(self.loss_mask))


class SftSequences:
    """Examples laid into sequences.

    Args:
        examples: the encoded examples.
        path: where they are from.
        seq_length: S.
        packing: put several examples into a sequence where they fit; else each has its own.
        pad_id: fills sequences up; any id, as nothing looks at it.
    """

    def __init__(self, examples: SftExamples, *, path: str, seq_length: int, packing: bool, pad_id: int) -> None:
        self.path = path
        self._examples = examples
        self._seq_length = seq_length
        self._pad_id = pad_id
        self._packing = packing
        # The last token of an example is a label only.
        lengths = (np.diff(examples.texts.starts) - 1).tolist()
        self._rows = pack(lengths, seq_length) if packing else [(number,) for number in range(len(examples))]

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._rows)

    def examples_of(self, index: int) -> tuple[int, ...]:
        """The numbers of the examples in sequence `index`, in their order there."""
        return self._rows[index]

    def __getitem__(self, index: int, /) -> SftSample:
        """Sequence `index`."""
        tokens, labels = np.full((2, self._seq_length), self._pad_id, np.int64)
        loss_mask = np.zeros(self._seq_length, np.float32)
        documents = np.full(self._seq_length, len(self._rows[index]), np.int32)
        start = 0
        for document, number in enumerate(self._rows[index]):
            example = self._examples[number]
            place = slice(start, start + len(example.tokens) - 1)
            tokens[place], labels[place] = example.tokens[:-1], example.tokens[1:]
            loss_mask[place] = example.is_learned[1:]
            documents[place] = document
            start = place.stop
        return SftSample(tokens, labels, loss_mask, documents if self._packing else None)


def make_sft_batch(samples: Sequence[SftSample], vocab_size: int | None = None) -> Batch:
    """Stacks sequences into a batch.

    Args:
        samples: at least one; all with document ids, or none.
        vocab_size: ids in use. Ids beyond them are an error here; see `make_batch`.

    Raises:
        DataError: a token is no id of the vocabulary.
    """
    tokens, labels, loss_mask = (
        torch.from_numpy(np.stack([getattr(sample, name) for sample in samples]))
        for name in ("tokens", "labels", "loss_mask")
    )
    if vocab_size is not None:
        # A label may be a token that is no input: the last one of an example.
        check_ids(tokens.numpy(), vocab_size)
        check_ids(labels.numpy(), vocab_size)
    documents = [sample.document_ids for sample in samples if sample.document_ids is not None]
    return Batch(tokens, labels, loss_mask, torch.from_numpy(np.stack(documents)) if documents else None)
