"""What every contender of `benchmarks.train_step` is given: one model, one way to cut it, one stream of batches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

from megatron_ds.config import ResolvedRun, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from megatron_ds.data.batch import Batch
    from megatron_ds.data.bert_batch import BertBatch

RESULT = "RESULT "  # begins the one line that a process has to say
LEARNING_RATE = 1e-4
CLIP_GRAD = 1.0

_TOY = ("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32")
# Shapes that are no files of configs/models: small enough for a CPU.
TOYS = {
    "toy": _TOY,
    "toy_bert": (*_TOY, "--model-type", "bert", "--residual-connection", "post_ln", "--activation", "gelu"),
    "toy_llama": (
        *(*_TOY, "--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu"),
        *("--num-query-groups", "2", "--disable-bias-linear", "--untie-embeddings-and-output-weights"),
    ),
}
# The presets that leave the vocabulary to a tokenizer.
_VOCABULARIES = {"gpt2": 50257, "bert": 30522, "toy": 121}

_PART = re.compile(r"(tp|pp|dp|z|m)(\d+)|(sp)")


@dataclass(frozen=True)
class Layout:
    """How a model is cut over processes.

    Attributes:
        tp: tensor-parallel size.
        pp: pipeline stages.
        dp: data-parallel size.
        zero: ZeRO stage.
        sequence_parallel: activations are cut between tensor-parallel layers as well.
        num_micro_batches: instead of the workload's; None keeps that.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int = 1
    sequence_parallel: bool = False
    num_micro_batches: int | None = None

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.tp * self.pp * self.dp

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Reads ``dp2z1``, ``tp2sp``, ``dp2z3``, ``pp2m8``: names with numbers, in any order; ZeRO-1 when not said.

        Raises:
            ValueError: not of this form.
        """
        names = {"z": "zero", "m": "num_micro_batches"}
        values: dict[str, int] = {}
        rest = text
        while match := _PART.match(rest):
            name, number, switch = match.groups()
            key = "sequence_parallel" if switch else names.get(name, name)
            if key in values:
                raise ValueError(f"layout {text!r} says {match.group()!r} twice")
            values[key] = True if switch else int(number)
            rest = rest[match.end() :]
        if rest or not values:
            raise ValueError(
                f"layout {text!r} is not made of tpN, ppN, dpN, zN (ZeRO stage), mN (micro-batches) and sp"
            )
        if any(value < 1 for key, value in values.items() if key != "zero"):
            raise ValueError(f"layout {text!r} has a size below 1")
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Workload:
    """One measurement of one contender.

    Attributes:
        contender: a name of `benchmarks.peers.contenders`.
        preset: a file of configs/models, or one of `TOYS`.
        layout: as `Layout.parse` reads it.
        micro_batch_size: samples in one forward pass.
        micro_batches: forward passes of each data-parallel rank in a step, where the layout says nothing else.
        seq_length: tokens of a sample; None takes the preset's.
        steps: that are timed.
        warmup: steps before them, at least one.
        compiled: peers compile their blocks; ours goes by `options`.
        same_weights: the plain peers begin with our initial weights, so that losses can be compared.
        options: further flags of ours.
    """

    contender: str
    preset: str
    layout: str = "dp1z1"
    micro_batch_size: int = 1
    micro_batches: int = 1
    seq_length: int | None = None
    steps: int = 10
    warmup: int = 3
    compiled: bool = False
    same_weights: bool = False
    options: tuple[str, ...] = field(default=())

    @property
    def cut(self) -> Layout:
        """The layout, read."""
        return Layout.parse(self.layout)

    @property
    def num_micro_batches(self) -> int:
        """Forward passes of each data-parallel rank in a step."""
        return self.cut.num_micro_batches or self.micro_batches

    @property
    def samples(self) -> int:
        """Samples in a step, over all processes."""
        return self.micro_batch_size * self.num_micro_batches * self.cut.dp

    def to_json(self) -> str:
        """For the command line of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "options": tuple(values["options"])})

    def flags(self, precision: str) -> list[str]:
        """The command line of the same run of ours, up to its data."""
        cut = self.cut
        values = {
            "--tensor-model-parallel-size": cut.tp,
            "--pipeline-model-parallel-size": cut.pp,
            "--zero-stage": cut.zero,
            "--micro-batch-size": self.micro_batch_size,
            "--global-batch-size": self.samples,
            "--train-iters": self.warmup + self.steps,
            "--lr": LEARNING_RATE,
            "--lr-decay-style": "constant",
            "--clip-grad": CLIP_GRAD,
            "--hidden-dropout": 0,
            "--attention-dropout": 0,
        }
        vocabulary = _VOCABULARIES.get(self.preset.split("_")[0])
        if vocabulary is not None:
            values["--vocab-size"] = vocabulary
        if self.seq_length is not None:
            values |= {"--seq-length": self.seq_length, "--max-position-embeddings": self.seq_length}
        return [
            *(TOYS.get(self.preset) or ("--model-preset", self.preset)),
            *(str(word) for pair in values.items() for word in pair),
            *(["--sequence-parallel"] if cut.sequence_parallel else []),
            *([f"--{precision}"] if precision != "fp32" else []),
            *self.options,
        ]

    def resolve(self, *, on_cuda: bool) -> ResolvedRun:
        """The run that a user with these flags gets: bf16 on CUDA, fp32 on CPU.

        Raises:
            ConfigError: there is no such preset, or it can't be cut so.
        """
        environ = {"WORLD_SIZE": str(self.cut.world_size), "DS_ACCELERATOR": "cuda" if on_cuda else "cpu"}
        # Where the launcher's other words are not known, only the size of the world matters to the options.
        return resolve(self.flags("bf16" if on_cuda else "fp32"), environ, "train_step")

    def whole_batch(self, step: int, model_type: str, length: int, vocab_size: int) -> Batch | BertBatch:
        """The global batch number `step`: the same random tokens for every contender.

        BERT's samples have padding after some length, and 15 % of their tokens are predicted.
        """
        import torch

        from benchmarks.tiny_bert import bert_batch
        from megatron_ds.data.batch import make_batch

        if model_type == "bert":
            return bert_batch(step, self.samples, length, vocab_size, _some_tokens, binary_head=True)
        generator = torch.Generator().manual_seed(1_000 + step)
        return make_batch(torch.randint(0, vocab_size, (self.samples, length + 1), generator=generator).numpy())

    def micro_batches_of(self, whole: Batch | BertBatch, dp_rank: int) -> Iterator[Batch | BertBatch]:
        """A rank's part of a global batch, cut as our data loader cuts it."""
        size, dp_size = self.micro_batch_size, self.cut.dp
        for start in range(dp_rank * size, self.samples, dp_size * size):
            parts = {name: None if part is None else part[start : start + size] for name, part in vars(whole).items()}
            yield type(whole)(**parts)


def _some_tokens(step: int, samples: int, length: int) -> Tensor:
    import torch

    generator = torch.Generator().manual_seed(2_000 + step)
    return (torch.rand(samples, length, generator=generator) < 0.15).float()


class Contender(Protocol):
    """A model ready to train.

    Attributes:
        dp_rank: which part of the global batch this process gets.
    """

    dp_rank: int

    def train_step(self, batches: list[Batch | BertBatch], label_count: float) -> Tensor:
        """One optimizer step.

        Args:
            batches: this rank's micro-batches, on the host.
            label_count: tokens of the global batch that are predicted.

        Returns:
            The loss on the global batch, a scalar.
        """

    def facts(self) -> dict[str, object]:
        """What is in force, asked of the built objects."""
