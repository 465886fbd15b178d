"""The options that say how BERT's samples are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig, RunConfig


@dataclass(frozen=True)
class BertSampling:
    """How BERT's samples are made.

    Attributes:
        seq_length: tokens in a sample, padding included.
        binary_head: whether a sample has two segments, whose order is to be told.
        mask_prob: share of a sample's tokens that are to be predicted.
        short_seq_prob: share of samples that are made shorter.
        mask_type: what is masked as one: tokens, whole words, or runs of whole words.
        max_ngram: words in the longest run.
    """

    seq_length: int
    binary_head: bool
    mask_prob: float
    short_seq_prob: float
    mask_type: Literal["token", "word", "ngram"]
    max_ngram: int

    @classmethod
    def of(cls, data: DataConfig, *, seq_length: int, binary_head: bool) -> BertSampling:
        """From the data options, and what the model says."""
        return cls(
            seq_length, binary_head, data.mask_prob, data.short_seq_prob, data.bert_mask_type, data.bert_max_ngram
        )

    @classmethod
    def of_run(cls, run: RunConfig) -> BertSampling | None:
        """From a run's options; None when its model is no BERT."""
        if run.model.model_type != "bert":
            return None
        return cls.of(run.data, seq_length=run.model.seq_length, binary_head=run.model.bert_binary_head)

    @property
    def max_tokens(self) -> int:
        """Tokens of text that a sample has room for, beside ``[CLS]`` and one ``[SEP]`` for each segment."""
        return self.seq_length - (3 if self.binary_head else 2)

    @property
    def min_sentences(self) -> int:
        """Sentences that a sample needs."""
        return 2 if self.binary_head else 1

    def to_json(self) -> dict[str, bool | int | float | str]:
        """The values by the names of the options, without the length and what says nothing."""
        values: dict[str, bool | int | float | str] = {
            "bert_binary_head": self.binary_head,
            "mask_prob": self.mask_prob,
            "short_seq_prob": self.short_seq_prob,
            "bert_mask_type": self.mask_type,
        }
        return {**values, "bert_max_ngram": self.max_ngram} if self.mask_type == "ngram" else values
