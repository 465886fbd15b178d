"""GPT samples: runs of `seq_length` + 1 tokens over documents laid end to end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.gpt_index import GptIndex
from megatron_ds.data.indexed_dataset import IndexedDataset
from megatron_ds.data.samples import Origin, Piece


class GptDataset:
    """The samples of one data set and split, in the order of training.

    Args:
        indexed: the token files.
        index: where each sample starts; it may have more samples than are wanted.
        seq_length: input tokens per sample.
        num_samples: number of samples.
    """

    def __init__(self, indexed: IndexedDataset, index: GptIndex, *, seq_length: int, num_samples: int) -> None:
        assert num_samples <= len(index.sample_starts), "the index was built for fewer samples"
        self.seq_length = seq_length
        self._indexed = indexed
        self._index = index
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        """Sample `index`: `seq_length` inputs, and one more token as the last label, [seq_length + 1]."""
        sample = np.empty(self.seq_length + 1, dtype=np.int64)
        filled = 0
        for _, start, end in self._runs(index):
            sample[filled : filled + end - start] = self._indexed.tokens[start:end]
            filled += end - start
        return sample

    def origin(self, index: int, /) -> Origin:
        """Where sample `index` is from."""
        pieces = (
            Piece(document, start - self._indexed.document_start(document), end - start)
            for document, start, end in self._runs(index)
            if end > start
        )
        return Origin(self._indexed.prefix, index, tuple(pieces))

    def _runs(self, index: int) -> Iterator[tuple[int, int, int]]:
        """The runs of tokens of a sample: the document, and where in the file its tokens begin and end."""
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        position, offset = self._index.sample_starts[index].tolist()
        missing = self.seq_length + 1
        while missing:
            document = int(self._index.document_order[position])
            start = self._indexed.document_start(document) + offset
            end = min(self._indexed.document_start(document + 1), start + missing)
            yield document, start, end
            missing -= end - start
            position, offset = position + 1, 0
