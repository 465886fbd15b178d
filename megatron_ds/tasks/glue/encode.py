"""GLUE's examples as samples of BERT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatron_ds.tasks.glue.read import GlueFile
from megatron_ds.tasks.pairs import PairExamples, longest_first
from megatron_ds.tasks.ragged import TokenTexts
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.tokenizers.bert_tokens import bert_tokens


def encode_glue(files: Sequence[GlueFile], tokenizer: Tokenizer, seq_length: int) -> PairExamples:
    """The examples of one file or more, tokenized.

    What does not fit is cut off the longer text first: the same as transformers' tokenizers with
    ``truncation="longest_first", padding="max_length"``.

    Args:
        files: files of one task, which all have labels or all have none.
        tokenizer: one with BERT's special tokens.
        seq_length: tokens of a sample.

    Raises:
        ConfigError: the tokenizer has none of BERT's special tokens.
    """
    known = bert_tokens(tokenizer)
    examples = [example for file in files for example in file.examples]
    is_labelled = files[0].has_labels
    assert all(file.has_labels == is_labelled for file in files), "files of one kind"
    seconds = [example.text_b for example in examples if example.text_b is not None]
    numbers = np.arange(len(examples))
    return PairExamples(
        path=", ".join(file.path for file in files),
        firsts=TokenTexts.encoded([example.text_a for example in examples], tokenizer),
        seconds=TokenTexts.encoded(seconds, tokenizer) if seconds else None,
        rows=np.stack([numbers, numbers], axis=1)[:, None],
        labels=[example.label for example in examples if example.label is not None] if is_labelled else None,
        uids=[example.uid for example in examples],
        truncation=longest_first,
        seq_length=seq_length,
        known=known,
    )
