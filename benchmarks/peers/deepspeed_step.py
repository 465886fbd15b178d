"""A module of the user's own under DeepSpeed, as its documentation has it: the plain model, or transformers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.peers.plain_step import TIMEOUT_MINUTES, adamw, plain_model
from benchmarks.peers.workload import CLIP_GRAD
from megatron_ds.config import ResolvedRun
from megatron_ds.data.batch import Batch
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.engine.distributed import start_distributed

if TYPE_CHECKING:
    from benchmarks.peers.workload import Workload


class DeepSpeedStep:
    """A module whose forward pass gives a micro-batch's share of the global loss, under ZeRO.

    Args:
        workload: what is measured.
        resolved: the run of ours with the same options.
    """

    def __init__(self, workload: Workload, resolved: ResolvedRun) -> None:
        self.device = start_distributed(TIMEOUT_MINUTES).device
        import deepspeed

        self.workload, self.dp_rank = workload, dist.get_rank()
        model = self.build(workload, resolved)
        self.parameter_count = sum(each.numel() for each in model.parameters())
        optimizer = adamw(list(model.parameters()), resolved.run.optimizer, self.device)
        self.engine: Any = deepspeed.initialize(
            model=model, optimizer=optimizer, config=_config(workload, resolved.run.training.precision)
        )[0]
        self.optimizer = optimizer

    def build(self, workload: Workload, resolved: ResolvedRun) -> nn.Module:
        """The plain model, on this process's device."""
        return plain_model(workload, resolved, self.device)

    def share(self, batch: Batch | BertBatch, label_count: float) -> Tensor:
        """A micro-batch's share of the loss on the global batch."""
        share: Tensor = self.engine(batch, label_count, self.workload.samples)
        return share

    def train_step(self, batches: list[Batch | BertBatch], label_count: float) -> Tensor:
        """See `benchmarks.peers.workload.Contender`."""
        total = torch.zeros((), device=self.device)
        # DeepSpeed divides by the number of micro-batches and of processes.
        parts = len(batches) * dist.get_world_size()
        for batch in batches:
            share = self.share(batch.to(self.device, non_blocking=True), label_count)
            self.engine.backward(share * parts)
            self.engine.step()
            total += share.detach()
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
        return total

    def facts(self) -> dict[str, object]:
        """See `benchmarks.peers.workload.Contender`."""
        engine = self.engine
        dtype, accumulation_dtype = engine.get_data_types()
        return {
            "engine": type(engine).__name__,
            "optimizer": f"{type(engine.optimizer).__name__} over {type(self.optimizer).__name__}",
            "dtype": str(dtype).removeprefix("torch."),
            "gradient accumulation": str(accumulation_dtype).removeprefix("torch."),
            **{"tp": 1, "pp": 1, "dp": dist.get_world_size(), "sequence_parallel": False},
            "zero": engine.zero_optimization_stage(),
            "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
            "num_micro_batches": engine.gradient_accumulation_steps(),
            "clip_grad": engine.gradient_clipping(),
            "compiled": any(each._compiled_call_impl is not None for each in engine.module.modules()),
            "fused": bool(self.optimizer.param_groups[0]["fused"]),
            "parameters_of_rank": self.parameter_count,
        }


def _config(workload: Workload, precision: str) -> dict[str, Any]:
    half: dict[str, Any] = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return {
        "train_micro_batch_size_per_gpu": workload.micro_batch_size,
        "gradient_accumulation_steps": workload.num_micro_batches,
        "gradient_clipping": CLIP_GRAD,
        "zero_optimization": {"stage": workload.cut.zero},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
        **(half if precision == "bf16" else {}),
    }
