"""The samples of one training step as text, for instance to look at a jump of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megatron_ds.data.bert_samples import BertSample
from megatron_ds.data.families import build_run_datasets
from megatron_ds.data.samples import Origin, SampleCounts, batch_hash

if TYPE_CHECKING:
    from megatron_ds.config.blocks import RunConfig
    from megatron_ds.tokenizers import Tokenizer


@dataclass(frozen=True)
class Step:
    """A step of a run.

    Attributes:
        number: from 1.
        first_sample: samples consumed before it.
        num_samples: its global batch size.
        is_known: whether the run's folder says so; otherwise all steps before are taken to have had this batch size.
    """

    number: int
    first_sample: int
    num_samples: int
    is_known: bool


def show_step(run: RunConfig, step: Step, tokenizer: Tokenizer | None, most_samples: int | None) -> Iterator[str]:
    """The samples of a step, line by line.

    Args:
        run: the run, whose data is in order.
        step: the step.
        tokenizer: turns ids into text; None prints the ids.
        most_samples: samples to show; None for all.

    Raises:
        DataError: a file is broken, or the cache of indices can't be written.
    """
    end = step.first_sample + step.num_samples
    datasets = build_run_datasets(
        run,
        # As many as the run has, so that its own index is found in the cache.
        samples=SampleCounts(max(end, run.training.train_iters * run.global_batch_size), 0, 0),
        is_builder=True,
        wait=lambda: None,
    )
    assert datasets.train is not None, "samples were asked for"
    train = datasets.train
    how = "as the run's folder says" if step.is_known else f"if all steps before had {step.num_samples} samples"
    digest = batch_hash(_numbers(train[number]) for number in range(step.first_sample, end))
    yield f"step {step.number}: samples {step.first_sample} to {end - 1} of the run, {how}; SHA-1 of the batch {digest}"
    shown = step.num_samples if most_samples is None else min(most_samples, step.num_samples)
    for number in range(step.first_sample, step.first_sample + shown):
        origin = train.origin(number)
        yield ""
        yield f"--- sample {number}: number {origin.sample} of {origin.prefix}"
        sample = train[number]
        if isinstance(sample, BertSample):
            yield from _segments(origin, sample, tokenizer)
        else:
            yield from _pieces(origin, sample, tokenizer)
    if shown < step.num_samples:
        yield ""
        yield f"({step.num_samples - shown} more samples)"


def _numbers(sample: NDArray[np.int64] | BertSample) -> NDArray[np.int64]:
    """All that the model gets of a sample, in one array."""
    return sample.stacked() if isinstance(sample, BertSample) else sample


def _segments(origin: Origin, sample: BertSample, tokenizer: Tokenizer | None) -> Iterator[str]:
    """A BERT's sample as its model sees it, and what that has to predict: each place, and the token there."""
    for piece in origin.pieces:
        order = ", second segment first" if sample.sop_label else ""
        last = piece.first_token + piece.tokens - 1
        yield f"[document {piece.document}, out of tokens {piece.first_token} to {last}{order}]"
    yield _text(sample.tokens[sample.padding_mask == 1], tokenizer)
    masked = np.flatnonzero(sample.loss_mask).tolist()
    yield "to predict: " + ", ".join(f"{place} {_text(sample.labels[[place]], tokenizer)}" for place in masked)


def _text(ids: NDArray[np.int64], tokenizer: Tokenizer | None) -> str:
    return tokenizer.decode(ids.tolist()) if tokenizer else " ".join(map(str, ids.tolist()))


def _pieces(origin: Origin, sample: NDArray[np.int64], tokenizer: Tokenizer | None) -> Iterator[str]:
    first = 0
    for piece in origin.pieces:
        ids = sample[first : first + piece.tokens]
        first += piece.tokens
        last = piece.first_token + piece.tokens - 1
        yield f"[document {piece.document}, tokens {piece.first_token} to {last}]"
        yield _text(ids, tokenizer)
