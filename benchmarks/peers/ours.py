"""Our training step, built as a run builds it: resolve, build_engine, engine.train_step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megatron_ds.config import ResolvedRun
from megatron_ds.data.batch import Batch
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.engine.distributed import start_distributed
from megatron_ds.models import model_layers, model_losses
from megatron_ds.mpu import ModelParallelUnit
from megatron_ds.optim.schedule import LearningRateSchedule

if TYPE_CHECKING:
    from benchmarks.peers.workload import Workload


class Ours:
    """The engine that a user with this run gets.

    Args:
        workload: what is measured.
        resolved: the run.
    """

    def __init__(self, workload: Workload, resolved: ResolvedRun) -> None:
        run = resolved.run
        joined = start_distributed(run.parallel.distributed_timeout_minutes)
        # DeepSpeed guesses at a device when it is imported before the processes have met.
        from megatron_ds.engine.build import build_engine
        from megatron_ds.engine.deepspeed_engine import DeepSpeedEngineBase

        cut = workload.cut
        self.mpu = ModelParallelUnit.create(
            cut.tp, cut.pp, joined.device, sequence_parallel=run.parallel.sequence_parallel
        )
        self.dp_rank = self.mpu.dp_rank
        layers = model_layers(run.model, self.mpu, attention_backend=run.training.attention_backend)
        schedule = LearningRateSchedule.from_config(run.optimizer, run.training.train_iters)
        losses = model_losses(run.model, self.mpu)
        engine = build_engine(run, resolved.deepspeed, layers, losses, self.mpu, schedule.learning_rate)
        assert isinstance(engine, DeepSpeedEngineBase)
        self.engine = engine

    def train_step(self, batches: list[Batch | BertBatch], label_count: float) -> Tensor:  # noqa: ARG002 - counts itself
        """See `benchmarks.peers.workload.Contender`."""
        return self.engine.train_step(batches).loss

    def facts(self) -> dict[str, object]:
        """See `benchmarks.peers.workload.Contender`."""
        deepspeed_engine = self.engine.deepspeed_engine
        return {
            **self.engine.facts(),
            "tp": self.mpu.tp_size,
            "pp": self.mpu.pp_size,
            "dp": self.mpu.dp_size,
            "sequence_parallel": self.mpu.sequence_parallel,
            "zero": self.engine.zero_stage,
            "micro_batch_size": deepspeed_engine.train_micro_batch_size_per_gpu(),
            "num_micro_batches": deepspeed_engine.gradient_accumulation_steps(),
            "clip_grad": deepspeed_engine.gradient_clipping(),
            "compiled": any(
                getattr(each, "_compiled_call_impl", None) is not None for each in deepspeed_engine.module.modules()
            ),
            "fused": bool(deepspeed_engine.basic_optimizer.param_groups[0].get("fused")),
            "parameters_of_rank": sum(
                getattr(each, "ds_numel", each.numel()) for _, each in self.engine.named_parameters()
            ),
        }


def initial_weights(resolved: ResolvedRun, vocab_rows: int) -> dict[str, Tensor]:
    """Our weights before the first step, whole and in fp32 on the host, for a peer that begins with the same.

    Args:
        resolved: the run.
        vocab_rows: rows of the vocabulary that the peer has.
    """
    from megatron_ds.models import SequentialModel, initialize_weights

    run = resolved.run
    mpu = ModelParallelUnit.offline(device=torch.device("cpu"))
    model = SequentialModel(model_layers(run.model, mpu))
    initialize_weights(model.named_parameters(), run.training.seed, mpu)
    assert run.model.padded_vocab_size(1) == vocab_rows
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
