"""The families of models: from a run to its kind of samples, what is wrong with its data, and its data sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_ds.data.bert_build import BertSamples
from megatron_ds.data.bert_check import check_bert_data
from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.build import Datasets, build_datasets
from megatron_ds.data.check import check_data
from megatron_ds.data.gpt_build import GptSamples
from megatron_ds.data.sample_kind import SampleKind
from megatron_ds.data.samples import SampleCounts
from megatron_ds.errors import Problem
from megatron_ds.tokenizers import Tokenizer, build_tokenizer
from megatron_ds.tokenizers.bert_tokens import bert_tokens

if TYPE_CHECKING:
    from megatron_ds.config.blocks import RunConfig


def run_data_problems(run: RunConfig, tokenizer: Tokenizer | None, samples: SampleCounts) -> list[Problem]:
    """All problems of a run's data, whatever the family of its model.

    Args:
        run: the run.
        tokenizer: its tokenizer; None where it has none, or where that is a problem already.
        samples: samples needed per set.
    """
    sampling, vocab_size = BertSampling.of_run(run), run.model.vocab_size
    if sampling is None:
        return check_data(run.data, seq_length=run.model.seq_length, samples=samples, vocab_size=vocab_size)
    return check_bert_data(run.data, sampling=sampling, samples=samples, tokenizer=tokenizer, vocab_size=vocab_size)


def run_samples(run: RunConfig) -> SampleKind[Any]:
    """The kind of samples that a run trains on; its tokenizer and its data are in order."""
    sampling = BertSampling.of_run(run)
    if sampling is None:
        return GptSamples(run.model.seq_length)
    return BertSamples(sampling, bert_tokens(build_tokenizer(run.data, vocab_size=run.model.vocab_size)))


def build_run_datasets(
    run: RunConfig, *, samples: SampleCounts, is_builder: bool, wait: Callable[[], None]
) -> Datasets[Any]:
    """The data sets of a run, whatever the family of its model; see `build_datasets`.

    Args:
        run: the run.
        samples: samples needed per set.
        is_builder: whether this process writes missing indices: one process of each node.
        wait: waits for all processes.

    Raises:
        DataError: a file is missing or broken, a set is too small, or the cache can't be written or seen.
    """
    seed = run.training.seed
    return build_datasets(run.data, run_samples(run), seed=seed, samples=samples, is_builder=is_builder, wait=wait)
