"""What is wrong with the data of a BERT, found before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron_ds.data.bert_build import BertSamples
from megatron_ds.data.bert_options import BertSampling
from megatron_ds.data.check import check_files
from megatron_ds.data.indexed_dataset import IndexedDataset, bin_path
from megatron_ds.data.samples import SampleCounts
from megatron_ds.data.sources import parse_sources
from megatron_ds.data.token_info import read_token_info
from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.tokenizers.bert_tokens import BertTokens, bert_tokens

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig


def check_bert_data(
    data: DataConfig,
    *,
    sampling: BertSampling,
    samples: SampleCounts,
    tokenizer: Tokenizer | None,
    vocab_size: int | None = None,
) -> list[Problem]:
    """All problems of a BERT's data options and files, and those of its tokenizer's tokens.

    Args:
        data: the data options.
        sampling: how samples are made.
        samples: samples needed per set; a set that none are needed from is not looked at.
        tokenizer: the run's tokenizer; None where it has none, or where that is a problem already.
        vocab_size: number of ids in use; the start of each file is compared with it. None leaves that out.
    """
    # A tokenizer that is named and not there has been a problem before.
    is_missed = tokenizer is None and data.tokenizer_type is not None
    problems = [] if is_missed else _check_tokenizer(tokenizer, sampling)
    if sampling.max_tokens < 2:
        least = sampling.seq_length + 2 - sampling.max_tokens
        problems.append(
            Problem(
                f"seq_length {sampling.seq_length} has no room for two tokens of text beside [CLS] and [SEP]",
                advice=f"use a --seq-length of {least} or more",
            )
        )
        return problems
    of_files = check_files(data, BertSamples(sampling), samples=samples, vocab_size=vocab_size)
    # Two splits of one file may have the same problem.
    problems += dict.fromkeys(of_files)
    return problems if of_files else problems + _check_sentences(data, sampling, samples)


def _check_tokenizer(tokenizer: Tokenizer | None, sampling: BertSampling) -> list[Problem]:
    if tokenizer is None:
        advice = "give --tokenizer-type and its files, also when the data is tokenized elsewhere"
        return [Problem("BERT's samples are made with a tokenizer's special tokens, and none is given", advice=advice)]
    try:
        known = bert_tokens(tokenizer)
    except ConfigError as error:
        return list(error.problems)
    return _check_words(known, sampling)


def _check_words(known: BertTokens, sampling: BertSampling) -> list[Problem]:
    if sampling.mask_type == "token" or known.continues_word is not None:
        return []
    return [
        Problem(
            f"bert_mask_type {sampling.mask_type} masks whole words, and this tokenizer doesn't mark the pieces that "
            "continue a word, as WordPiece does",
            (Source("bert_mask_type", sampling.mask_type, "--bert-mask-type"),),
            "use --bert-mask-type token, or a WordPiece tokenizer",
        )
    ]


def _check_sentences(data: DataConfig, sampling: BertSampling, samples: SampleCounts) -> list[Problem]:
    """Documents that are known to be one sequence each have to fit into one sample."""
    blends = [blend for blend in parse_sources(data) if samples.of(blend.split)]
    problems = []
    for prefix in dict.fromkeys(part.prefix for blend in blends for part in blend.parts):
        info = read_token_info(prefix)
        if info is None or info.split_sentences:
            continue
        file = IndexedDataset(prefix)
        num_long = int((file.sizes > sampling.max_tokens).sum())
        if num_long:
            problems.append(
                Problem(
                    f"{bin_path(prefix)} is not split into sentences, and {num_long} of {file.num_documents} documents "
                    f"have more than the {sampling.max_tokens} tokens of a sample: the rest would never be used",
                    advice="preprocess with --split-sentences",
                )
            )
    return problems
