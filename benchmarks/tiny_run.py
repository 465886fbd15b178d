"""A tiny GPT on any layout, as benchmarks and tests run it on each rank of a world.

The run is resolved from flags, as a user's is, and its data are a function of the step alone: what is left to differ
between two layouts is rounding.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tiny_bert import bert_batch, plain_bert_loss
from megatron_ds.checkpoint.reader import open_checkpoint
from megatron_ds.config import ResolvedRun, resolve
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import TrainingOrder
from megatron_ds.data.batch import Batch, make_batch
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.data.boundaries import DocumentBoundaries
from megatron_ds.engine.base import StepResult
from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase
from megatron_ds.engine.distributed import local_device
from megatron_ds.models import (
    LayerDef,
    LossFunction,
    ParallelTransformerLayer,
    SequentialModel,
    initialize_weights,
    model_layers,
    model_losses,
    run_layers,
    whole_model_specs,
)
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.optim.schedule import LearningRateSchedule
from megatron_ds.training.batches import with_prefixes
from megatron_ds.training.saving import CheckpointSaver

Precision = Literal["fp32", "bf16", "fp16"]
MaskRule = Callable[[int, int, int], Tensor]

VOCAB_SIZE = 61  # a prime: every tensor-parallel size pads it
SEQ_LENGTH = 16
EOD_ID = 0
# Every document in a sample is a text of its own.
DOCUMENT_FLAGS = (
    *("--eod-id", str(EOD_ID)),
    *("--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"),
)

# Models in which every option of the architecture occurs, by the flags that make them.
MODELS: Mapping[str, tuple[str, ...]] = {
    "Llama 3.1": (
        *("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--num-query-groups", "2"),
        *("--disable-bias-linear", "--rotary-base", "500", "--use-rope-scaling", "--rope-scaling-factor", "4"),
        *("--rope-original-max-positions", "8"),
    ),
    "BLOOM": ("--position-embedding-type", "alibi", "--embed-layernorm"),
    "Pythia": (
        *("--position-embedding-type", "rope", "--rotary-percent", "0.25", "--activation", "gelu"),
        "--parallel-residual",
    ),
    "GLM": (
        *("--position-embedding-type", "rope", "--glu-activation", "geglu", "--deepnorm"),
        *("--init-method", "xavier_normal"),
    ),
    "Qwen": (
        *("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--num-query-groups", "1"),
        *("--kv-channels", "16", "--qk-layernorm", "--disable-bias-linear", "--add-qkv-bias"),
    ),
    "Mistral": (
        *("--position-embedding-type", "rope", "--window-size", "5", "--num-query-groups", "2"),
        *("--rotary-interleaved", "--rotary-seq-len-interpolation-factor", "2", "--activation", "reglu"),
    ),
    "OPT": ("--activation", "relu", "--no-use-scaled-init-method"),
    "post-LN": (
        *("--position-embedding-type", "none", "--activation", "squared_relu", "--qk-layernorm"),
        "--apply-residual-connection-post-layernorm",
    ),
    "ALiBi, window": (
        *("--position-embedding-type", "alibi", "--window-size", "7", "--num-query-groups", "2"),
        *("--normalization", "RMSNorm", "--embed-layernorm", "--activation", "liglu"),
    ),
    "prefix-LM": ("--position-embedding-type", "rope", "--prefix-lm", "--num-query-groups", "2"),
    "prefix-LM, ALiBi": ("--position-embedding-type", "alibi", "--prefix-lm"),
    "BERT": ("--model-type", "bert", "--apply-residual-connection-post-layernorm", "--activation", "gelu"),
    "BERT, one loss": ("--model-type", "bert", "--bert-no-binary-head", "--num-tokentypes", "3"),
    "SiLU": ("--activation", "silu", "--num-query-groups", "1", "--parallel-residual", "--fp32-residual-connection"),
}


@dataclass(frozen=True)
class Case:
    """One configuration of the tiny GPT.

    Attributes:
        tp: tensor-parallel size.
        pp: pipeline stages.
        dp: data-parallel size.
        zero: ZeRO stage; None leaves it to the config's own choice.
        precision: dtype of the layers.
        tied: the output head has the word embeddings' weights.
        micro_batch_size: samples in one forward pass.
        recompute: activation checkpointing.
        global_batch_size: samples in one optimizer step.
        num_layers: transformer layers.
        dropout: of the residual stream and of attention probabilities.
        more: further flags, in pairs or switches.
        deepspeed_json: text of a DeepSpeed JSON, for what has no flag; empty for none.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int | None = None
    precision: Precision = "fp32"
    tied: bool = True
    micro_batch_size: int = 1
    recompute: bool = False
    global_batch_size: int = 8
    num_layers: int = 4
    dropout: float = 0.0
    more: tuple[str, ...] = ()
    deepspeed_json: str = ""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that each rank runs in one step."""
        return self.global_batch_size // (self.micro_batch_size * self.dp)

    def flags(self) -> list[str]:
        """The command line of this case. What `more` says comes last, and so counts."""
        values = {
            "--num-layers": self.num_layers,
            "--hidden-size": 32,
            "--num-attention-heads": 4,
            "--seq-length": SEQ_LENGTH,
            "--vocab-size": VOCAB_SIZE,
            "--make-vocab-size-divisible-by": 1,
            "--hidden-dropout": self.dropout,
            "--attention-dropout": self.dropout,
            "--tensor-model-parallel-size": self.tp,
            "--pipeline-model-parallel-size": self.pp,
            "--micro-batch-size": self.micro_batch_size,
            "--global-batch-size": self.global_batch_size,
            "--train-iters": 100,
            "--lr": 1e-2,
            "--lr-decay-style": "constant",
            # The bias of the keys has a gradient of exactly zero in theory: softmax ignores what is added to all of a
            # query's scores. What rounding leaves of it, Adam with its usual epsilon of 1e-8 turns into steps of the
            # full learning rate in a random direction. With this one a gradient has to be worth something.
            "--adam-eps": 1e-4,
            "--clip-grad": 0.1,
        }
        words = [str(word) for pair in values.items() for word in pair]
        if self.zero is not None:
            words += ["--zero-stage", str(self.zero)]
        if self.precision != "fp32":
            words.append(f"--{self.precision}")
        if not self.tied:
            words.append("--untie-embeddings-and-output-weights")
        if self.recompute:
            words.append("--checkpoint-activations")
        return [*words, *self.more]

    def resolve(self, *, on_cuda: bool = False) -> ResolvedRun:
        """The run that a user with these flags gets.

        Args:
            on_cuda: the run will be on GPUs.
        """
        environ = {"WORLD_SIZE": str(self.world_size)}
        # fp16 on CPU is refused, for DeepSpeed refuses it; tests of its accumulation switch that off.
        environ["DS_ACCELERATOR"] = "cuda" if on_cuda or self.precision == "fp16" else "cpu"
        if not self.deepspeed_json:
            return resolve(self.flags(), environ, "tiny_run")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(self.deepspeed_json)
            file.flush()
            return resolve([*self.flags(), "--deepspeed-config", file.name], environ, "tiny_run")


def some_tokens_count(step: int, samples: int, length: int) -> Tensor:
    """A loss mask in which 60 % of the tokens count, and none of the first sample's: fp32 [samples, length]."""
    generator = torch.Generator().manual_seed(2_000 + step)
    mask = (torch.rand(samples, length, generator=generator) < 0.6).float()
    mask[0] = 0
    return mask


def global_batch(
    step: int,
    samples: int,
    mask_rule: MaskRule = some_tokens_count,
    boundaries: DocumentBoundaries | None = None,
) -> Batch:
    """The global batch number `step`: random tokens, and the loss mask that `mask_rule` gives.

    With `boundaries`, one token in five ends a document, and the mask is that of the boundaries as well.
    """
    generator = torch.Generator().manual_seed(1_000 + step)
    tokens = torch.randint(0, VOCAB_SIZE, (samples, SEQ_LENGTH + 1), generator=generator)
    if boundaries is not None:
        tokens[torch.rand(tokens.shape, generator=generator) < 0.2] = boundaries.eod_id
    batch = make_batch(tokens.numpy(), boundaries=boundaries)
    return replace(batch, loss_mask=batch.loss_mask * mask_rule(step, samples, SEQ_LENGTH))


def batch_of_run(run: RunConfig, step: int, samples: int, mask_rule: MaskRule) -> Batch | BertBatch:
    """The global batch number `step` as a run with these options gets it."""
    if run.model.model_type == "bert":
        return bert_batch(step, samples, SEQ_LENGTH, VOCAB_SIZE, mask_rule, binary_head=run.model.bert_binary_head)
    whole = global_batch(step, samples, mask_rule, DocumentBoundaries.of(run.data))
    if not run.model.prefix_lm:
        return whole
    return with_prefixes(whole, range(step * samples, (step + 1) * samples), run.training.seed)


class TinyRun:
    """A built engine, with the data to feed it. Every rank makes one.

    Args:
        case: the configuration.
        layers: a model of the caller's own instead of GPT.
        loss: a loss of the caller's own instead of GPT's.
        mask_rule: from (step, samples, length) to the global batch's loss mask.
    """

    def __init__(
        self,
        case: Case,
        *,
        layers: Callable[[RunConfig, ModelParallelUnit], list[LayerDef]] = run_layers,
        loss: LossFunction | None = None,
        mask_rule: MaskRule = some_tokens_count,
    ) -> None:
        # Not at the top: what imports this module to start ranks needs no DeepSpeed, which would guess at a device.
        from megatron_ds.engine.build import build_engine

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        self.case = case
        device = local_device()
        self.resolved = case.resolve(on_cuda=device.type == "cuda")
        self.run = self.resolved.run
        self.mpu = ModelParallelUnit.create(
            case.tp, case.pp, device, sequence_parallel=self.run.parallel.sequence_parallel
        )
        self._mask_rule = mask_rule
        self.layers = model = layers(self.run, self.mpu)
        schedule = LearningRateSchedule.from_config(self.run.optimizer, self.run.training.train_iters)
        losses = {"lm_loss": loss} if loss is not None else model_losses(self.run.model, self.mpu)
        engine = build_engine(self.run, self.resolved.deepspeed, model, losses, self.mpu, schedule.learning_rate)
        assert isinstance(engine, DeepSpeedEngineBase)
        self.engine = engine

    def batches(self, step: int, micro_batch_size: int | None = None) -> list[Any]:
        """This rank's micro-batches of the global batch number `step`, cut as the data loader cuts them."""
        size = micro_batch_size or self.case.micro_batch_size
        whole = batch_of_run(self.run, step, self.case.global_batch_size, self._mask_rule)
        starts = range(self.mpu.dp_rank * size, self.case.global_batch_size, self.mpu.dp_size * size)
        return [
            type(whole)(
                **{name: None if part is None else part[start : start + size] for name, part in vars(whole).items()}
            )
            for start in starts
        ]

    def train_step(self, step: int) -> StepResult:
        """One optimizer step on the global batch number `step`."""
        return self.engine.train_step(self.batches(step))

    def save(self, folder: Path) -> None:
        """Writes a checkpoint, as a run with ``--save`` does."""
        order = TrainingOrder.of(self.run) if self.run.data.data_path else None
        specs = whole_model_specs(partial(model_layers, self.run.model), self.mpu.topology)
        CheckpointSaver(self.run, specs, self.engine, self.mpu, self.layers, order)(folder)

    def load(self, folder: Path, step: int | None = None) -> None:
        """Goes on from a checkpoint."""
        self.engine.load(open_checkpoint(folder, step))

    @cached_property
    def blocks(self) -> list[ParallelTransformerLayer]:
        """The transformer layers on this rank."""
        modules = self.engine.deepspeed_engine.module.modules()
        return [module for module in modules if isinstance(module, ParallelTransformerLayer)]

    def count_block_forwards(self) -> list[int]:
        """A list that grows by one entry each time a transformer layer of this rank runs, recomputation included."""
        runs: list[int] = []
        for number, block in enumerate(self.blocks):
            # A part of the layer, because recomputation goes round the layer's own hooks.
            block.input_layernorm.register_forward_hook(lambda *_, number=number: runs.append(number))
        return runs

    def count_core_runs(self) -> list[bool]:
        """A list that grows by one entry each time the core of attention of a layer of this rank runs."""
        runs: list[bool] = []

        def counted(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def run(*tensors: Any) -> Tensor:
                runs.append(True)
                return kernel(*tensors)

            return run

        # The layers of a rank share one.
        for scheme in {block.attention.scheme for block in self.blocks}:
            scheme.kernel = counted(scheme.kernel)  # type: ignore[assignment]
        return runs

    def facts(self) -> dict[str, Any]:
        """What is in force, asked of the built objects and not of the config."""
        engine, deepspeed_engine = self.engine, self.engine.deepspeed_engine
        return {
            **engine.facts(),
            "tp": self.mpu.tp_size,
            "pp": self.mpu.pp_size,
            "dp": self.mpu.dp_size,
            "sequence_parallel": self.mpu.sequence_parallel,
            "zero": engine.zero_stage,
            "micro_batch_size": deepspeed_engine.train_micro_batch_size_per_gpu(),
            "num_micro_batches": deepspeed_engine.gradient_accumulation_steps(),
            "fused": bool(deepspeed_engine.basic_optimizer.param_groups[0].get("fused")),
            "parameter_dtype": str(next(engine.named_parameters())[1].dtype).removeprefix("torch."),
            "restarts_positions": any(getattr(each, "restart", False) for each in deepspeed_engine.module.modules())
            or any(block.attention.scheme.restarts_angles for block in self.blocks),
            "separates_documents": any(block.attention.scheme.separates_documents for block in self.blocks),
        }


@dataclass(frozen=True)
class Outcome:
    """What a case came to on one rank.

    Attributes:
        losses: of each step.
        norms: gradient norm of each step, before clipping.
        eval_losses: of the evaluations.
        initial_weights: whole parameters in fp32 by canonical name, before the first step, on rank 0 only.
        weights: the same after the last step.
        facts: see `TinyRun.facts`; with `block_forwards`, how often each layer ran in one micro-batch.
    """

    losses: list[float]
    norms: list[float]
    eval_losses: list[float]
    initial_weights: dict[str, Tensor]
    weights: dict[str, Tensor]
    facts: dict[str, Any]


def run_case(case: Case, steps: int = 5, eval_before: Sequence[int] = (2,)) -> Outcome:
    """Trains a case on this rank.

    Args:
        case: the configuration.
        steps: optimizer steps.
        eval_before: steps before which the loss on that step's batch is evaluated.
    """
    tiny = TinyRun(case)
    initial_weights = _fp32_weights(tiny)
    block_runs = tiny.count_block_forwards()
    losses, norms, eval_losses = [], [], []
    facts = tiny.facts()
    for step in range(steps):
        if step in eval_before:
            eval_losses.append(float(tiny.engine.evaluate(tiny.batches(step)).loss))
        block_runs.clear()
        result = tiny.train_step(step)
        facts["block_forwards"] = len(block_runs) / max(1, len(tiny.blocks)) / case.num_micro_batches
        losses.append(float(result.loss))
        norms.append(result.grad_norm)
    return Outcome(losses, norms, eval_losses, initial_weights, _fp32_weights(tiny), facts)


def run_cases(cases: Sequence[Case], steps: int = 5) -> list[Outcome]:
    """Runs cases of one world size one after the other: where starting a world costs more than running in it."""
    return [run_case(case, steps) for case in cases]


def _fp32_weights(tiny: TinyRun) -> dict[str, Tensor]:
    from megatron_ds.engine.weights import full_weights

    weights = full_weights(tiny.engine, tiny.mpu) or {}
    return {name: weight.float() for name, weight in weights.items()}


def run_plain_pytorch(
    case: Case, steps: int = 5, eval_before: Sequence[int] = (2,), mask_rule: MaskRule = some_tokens_count
) -> Outcome:
    """What `case` must come to, by PyTorch alone: no engine, no micro-batches, fp32, no dropout.

    Only the layers and their initial weights are the project's own; the loss, the norm, clipping and the update are
    PyTorch's functions.

    Args:
        case: the configuration; how it is cut does not matter.
        steps: optimizer steps.
        eval_before: steps before which the loss on that step's batch is evaluated.
        mask_rule: as in `TinyRun`.
    """
    device = local_device()
    run = replace(case, tp=1, pp=1, dp=1, zero=0, precision="fp32", deepspeed_json="").resolve().run
    mpu = ModelParallelUnit.offline(device=device)
    model = SequentialModel(run_layers(run, mpu)).to(device)
    initialize_weights(model.named_parameters(), run.training.seed, mpu)
    initial_weights = _on_cpu(model)
    options = run.optimizer
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": options.weight_decay},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=options.lr,
        betas=(options.adam_beta1, options.adam_beta2),
        eps=options.adam_eps,
    )

    def mean_loss(step: int) -> Tensor:
        batch = batch_of_run(run, step, case.global_batch_size, mask_rule).to(device)
        outputs = model(batch.inputs)
        if isinstance(batch, BertBatch):
            return plain_bert_loss(outputs, batch, VOCAB_SIZE)
        logits = outputs.transpose(0, 1)[..., :VOCAB_SIZE]
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        mask = batch.loss_mask.flatten()
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    losses, norms, eval_losses = [], [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = mean_loss(step)
        torch.autograd.backward(loss)
        largest = options.clip_grad or float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), largest)))
        losses.append(float(loss))
        if step in eval_before:
            eval_losses.append(float(loss))
        optimizer.step()
    return Outcome(losses, norms, eval_losses, initial_weights, _on_cpu(model), {})


def _on_cpu(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}


def reference(case: Case) -> Case:
    """The one-process run that `case` must agree with: plain fp32, or ZeRO-1 for the 16-bit precisions."""
    return replace(
        case,
        tp=1,
        pp=1,
        dp=1,
        zero=0 if case.precision == "fp32" else 1,
        micro_batch_size=case.global_batch_size,
        recompute=False,
    )


@dataclass(frozen=True)
class Difference:
    """How far a run is from its reference.

    Attributes:
        loss: largest relative difference of a loss, evaluations included.
        norm: largest relative difference of a gradient norm.
        weights: ``|w - r| / |r - r0|`` with r0 the weights at the start and all weights as one vector: the difference
            relative to how far training has moved.
        weights_allclose: every weight is within 1e-6 + 1e-5 |r|.
    """

    loss: float
    norm: float
    weights: float
    weights_allclose: bool


def difference(outcome: Outcome, expected: Outcome) -> Difference:
    """Compares two outcomes of rank 0."""
    assert expected.weights, "weights are on rank 0 only"
    assert outcome.weights.keys() == expected.weights.keys()
    found, wanted, start = (
        torch.cat([weights[name].flatten() for name in expected.weights])
        for weights in (outcome.weights, expected.weights, expected.initial_weights)
    )
    return Difference(
        _relative(outcome.losses + outcome.eval_losses, expected.losses + expected.eval_losses),
        _relative(outcome.norms, expected.norms),
        float((found - wanted).norm() / (wanted - start).norm()),
        torch.allclose(found, wanted, rtol=1e-5, atol=1e-6),
    )


def _relative(found: Sequence[float], wanted: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
