"""The plain model's step without DeepSpeed: bf16 parameters, fp32 masters and accumulation, fused AdamW, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.peers.plain import PlainModel
from benchmarks.peers.workload import CLIP_GRAD, LEARNING_RATE
from megatron_ds.config import ResolvedRun
from megatron_ds.config.blocks import OptimizerConfig
from megatron_ds.data.batch import Batch
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.engine.distributed import start_processes

if TYPE_CHECKING:
    from benchmarks.peers.workload import Workload

TIMEOUT_MINUTES = 10


def plain_model(workload: Workload, resolved: ResolvedRun, device: torch.device) -> PlainModel:
    """The plain model in fp32, with random weights, or with ours where the workload wants that."""
    config = resolved.run.model
    torch.manual_seed(resolved.run.training.seed)
    with device:
        model = PlainModel(config, compiled=workload.compiled)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=config.init_method_std)
    if workload.same_weights:
        from benchmarks.peers.ours import initial_weights

        model.load_state_dict(initial_weights(resolved, config.padded_vocab_size(1)))
    return model


def adamw(parameters: list[nn.Parameter], options: OptimizerConfig, device: torch.device) -> torch.optim.AdamW:
    """PyTorch's AdamW with our hyperparameters, fused on CUDA: matrices decay, vectors don't."""
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (options.adam_beta1, options.adam_beta2)
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=betas, eps=options.adam_eps, fused=device.type == "cuda")


class PlainStep:
    """Data parallelism is an all-reduce of the accumulated gradients; nothing is sharded.

    Args:
        workload: what is measured.
        resolved: the run.
    """

    def __init__(self, workload: Workload, resolved: ResolvedRun) -> None:
        self.device = start_processes(TIMEOUT_MINUTES).device
        self.dp_rank, self.workload = dist.get_rank(), workload
        model = plain_model(workload, resolved, self.device)
        self.masters = [nn.Parameter(each.detach().clone().float()) for each in model.parameters()]
        self.model = model.bfloat16() if resolved.run.training.precision == "bf16" else model
        self.parameters = list(self.model.parameters())
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = torch.zeros_like(master)
            parameter.register_post_accumulate_grad_hook(_adds_to(master.grad))
        self.optimizer = adamw(self.masters, resolved.run.optimizer, self.device)

    def train_step(self, batches: list[Batch | BertBatch], label_count: float) -> Tensor:
        """See `benchmarks.peers.workload.Contender`."""
        loss = torch.zeros((), device=self.device)
        for batch in batches:
            share = self.model(batch.to(self.device, non_blocking=True), label_count, self.workload.samples)
            share.backward()
            loss += share.detach()
        gradients = [master.grad for master in self.masters if master.grad is not None]
        if dist.get_world_size() > 1:
            for tensor in (*gradients, loss):
                dist.all_reduce(tensor)
        nn.utils.clip_grad_norm_(self.masters, CLIP_GRAD)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
            torch._foreach_zero_(gradients)
        return loss

    def facts(self) -> dict[str, object]:
        """See `benchmarks.peers.workload.Contender`."""
        return {
            "engine": "PyTorch",
            "optimizer": "AdamW",
            "dtype": str(self.parameters[0].dtype).removeprefix("torch."),
            "gradient accumulation": "float32",
            **{"tp": 1, "pp": 1, "dp": dist.get_world_size(), "zero": 0, "sequence_parallel": False},
            "micro_batch_size": self.workload.micro_batch_size,
            "num_micro_batches": self.workload.num_micro_batches,
            "clip_grad": CLIP_GRAD,
            "compiled": any(each._compiled_call_impl is not None for each in self.model.modules()),
            "fused": bool(self.optimizer.param_groups[0]["fused"]),
            "parameters_of_rank": sum(each.numel() for each in self.parameters),
        }


def _adds_to(accumulated: Tensor) -> Callable[[Tensor], None]:
    def add(parameter: Tensor) -> None:
        accumulated.add_(parameter.grad)
        parameter.grad = None

    return add
