"""Instruction tuning of a GPT: loss on responses only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from megatron_ds.data.batch import Batch
from megatron_ds.tasks.digest import digest_of, name_of
from megatron_ds.tasks.sft.chat import ChatEncoder
from megatron_ds.tasks.sft.encode import encode_sft
from megatron_ds.tasks.sft.read import read_conversations
from megatron_ds.tasks.sft.samples import SftSample, SftSequences, make_sft_batch
from megatron_ds.tasks.task import Scores, TaskSet
from megatron_ds.tokenizers import Tokenizer
from megatron_ds.tokenizers.chat_template import ChatTemplate
from megatron_ds.tokenizers.fast import FastTokenizer
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted


@dataclass(frozen=True)
class SftFinetuning:
    """Prompts and responses, or conversations; see `Task`.

    Attributes:
        tokenizer: the model's.
        template: its chat template; None: prompts and responses as they are.
        seq_length: tokens of a sequence.
        packing: several short examples share a sequence.
        pad_id: fills sequences up.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    seq_length: int
    packing: bool
    pad_id: int
    name: str = "SFT"
    needs_scores: bool = False

    def read(self, paths: Sequence[Path], *, need_labels: bool) -> TaskSet:  # noqa: ARG002 - a response is the label
        """Reads, encodes and packs files as one set."""
        chat = None
        if self.template is not None:
            assert isinstance(self.tokenizer, FastTokenizer), "chat templates come with Hugging Face's tokenizers"
            chat = ChatEncoder(self.tokenizer, self.template)
        conversations = chain.from_iterable(read_conversations(path) for path in paths)
        examples = encode_sft(conversations, self.tokenizer, chat, self.seq_length)
        sequences = SftSequences(
            examples,
            path=", ".join(map(str, paths)),
            seq_length=self.seq_length,
            packing=self.packing,
            pad_id=self.pad_id,
        )
        name = name_of(paths)
        if examples.left_out:
            logger.info("%s: %s", name, examples.left_out.describe("example"))
        if examples.num_cut:
            logger.info("%s: %s cut at the end to fit", name, counted(examples.num_cut, "example"))
        if self.packing:
            logger.info("%s: %s in %s", name, counted(len(examples), "example"), counted(len(sequences), "sequence"))
        return TaskSet(name, sequences, has_labels=True, digest=digest_of(paths))

    def collate(self, samples: Sequence[SftSample]) -> Batch:
        """Makes a micro-batch of sequences."""
        return make_sft_batch(samples)

    def metrics(self, each: TaskSet, scores: Scores) -> Mapping[str, float]:  # noqa: ARG002
        """None beside the loss."""
        return {}

    def score(self, metrics: Mapping[str, float], losses: Mapping[str, float]) -> float:  # noqa: ARG002
        """The loss of the responses: the lower the better."""
        return -losses["lm_loss"]

    def write_predictions(self, each: TaskSet, scores: Scores, folder: Path, name: str) -> Path:  # noqa: ARG002
        """There are none: a response is written with ``megatron-ds generate``."""
        raise AssertionError("scores are not asked for")
