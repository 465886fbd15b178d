"""Megatron core's GPT by its public interface, with PyTorch's attention and without Transformer Engine or apex.

Written from its public interface and NOT RUN where this was written, because the package was not installed
there: a change of its interface shows as this contender's error line, and the others go on.

The distributed optimizer stands for ZeRO-1: bf16 parameters, fp32 masters, gradients accumulated and reduced in fp32.
Core's own attention without Transformer Engine writes all scores out, so SDPA stands in its place. Its norms without
apex and Transformer Engine refuse sequence parallelism, so tensor parallelism is run without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from benchmarks.peers.plain import KERNELS
from benchmarks.peers.plain_step import TIMEOUT_MINUTES
from benchmarks.peers.workload import CLIP_GRAD, LEARNING_RATE
from megatron_ds.config import ResolvedRun
from megatron_ds.config.blocks import ModelConfig
from megatron_ds.data.batch import Batch
from megatron_ds.data.bert_batch import BertBatch
from megatron_ds.engine.distributed import start_processes

if TYPE_CHECKING:
    from benchmarks.peers.workload import Workload


class SdpaCore(nn.Module):
    """Causal SDPA in the place of core's attention: ``[S, B, N, D]`` of each in, ``[S, B, N D]`` out.

    Core passes what its own attention takes; only the scale could matter here, and it is the usual one.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        """See the class."""
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        shared = query.shape[1] != key.shape[1]
        with sdpa_kernel(KERNELS, set_priority=True):
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)
        return context.permute(2, 0, 1, 3).flatten(2)


def unsupported(config: ModelConfig) -> str | None:
    """Why this contender has no such architecture; None when it has."""
    if config.model_type != "gpt" or config.residual_connection != "pre_ln":
        return "it runs pre-LN GPT alone"
    if config.activation not in {"gelu_tanh", "swiglu"} or config.use_rope_scaling or config.window_size:
        return "it runs GELU and SwiGLU, without windows and scaled rotary embeddings"
    if config.position_embedding_type not in {"learned_absolute", "rope"} or config.qk_layernorm:
        return "it runs learned positions and rotary ones, without norms of queries"
    return None


class MegatronCoreStep:
    """GPTModel in core's DistributedDataParallel, through core's schedule and optimizer.

    Args:
        workload: what is measured.
        resolved: the run of ours with the same options.
    """

    def __init__(self, workload: Workload, resolved: ResolvedRun) -> None:
        self.device = start_processes(TIMEOUT_MINUTES).device
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
        from megatron.core.transformer.module import Float16Module

        self.workload, self.model_config = workload, resolved.run.model
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=workload.cut.tp)
        model_parallel_cuda_manual_seed(resolved.run.training.seed)
        self.dp_rank = parallel_state.get_data_parallel_rank()
        self.dp_size = parallel_state.get_data_parallel_world_size()
        self.config = _transformer_config(self.model_config, workload.cut.tp)
        gpt = Float16Module(self.config, _gpt(self.config, self.model_config).to(self.device))
        self.parameter_count = sum(each.numel() for each in gpt.parameters())
        self.model = DistributedDataParallel(
            self.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=self.dp_size > 1
            ),
            gpt,
        )
        options = resolved.run.optimizer
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=LEARNING_RATE,
                min_lr=LEARNING_RATE,
                weight_decay=options.weight_decay,
                adam_beta1=options.adam_beta1,
                adam_beta2=options.adam_beta2,
                adam_eps=options.adam_eps,
                bf16=True,
                params_dtype=torch.bfloat16,
                use_distributed_optimizer=True,
                clip_grad=CLIP_GRAD,
            ),
            [self.model],
        )
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.config.no_sync_func = self.model.no_sync if self.dp_size > 1 else None

    def train_step(self, batches: list[Batch | BertBatch], label_count: float) -> Tensor:  # noqa: ARG002 - all count
        """See `benchmarks.peers.workload.Contender`."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        outputs = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(batches),
            model=[self.model],
            num_microbatches=len(batches),
            seq_length=self.model_config.seq_length,
            micro_batch_size=self.workload.micro_batch_size,
            forward_only=False,
        )
        self.optimizer.step()
        loss = torch.stack([output["loss"] for output in outputs]).mean()
        # Tensor-parallel ranks have the same loss, so the mean over all ranks is that over the data-parallel ones.
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        return loss

    def _forward(self, batches: Iterator[Batch], model: nn.Module) -> tuple[Tensor, Any]:
        batch = next(batches).to(self.device, non_blocking=True)
        positions = torch.arange(batch.tokens.shape[1], device=self.device).expand_as(batch.tokens)
        return model(batch.tokens, positions, None, labels=batch.labels), partial(_mean, batch.loss_mask)

    def facts(self) -> dict[str, object]:
        """See `benchmarks.peers.workload.Contender`."""
        return {
            "engine": type(self.model).__name__,
            "optimizer": type(self.optimizer).__name__,
            "dtype": "bfloat16",
            "gradient accumulation": "float32",
            **{"tp": self.workload.cut.tp, "pp": 1, "dp": self.dp_size, "zero": 1},
            "sequence_parallel": self.config.sequence_parallel,
            "micro_batch_size": self.workload.micro_batch_size,
            "num_micro_batches": self.workload.num_micro_batches,
            "clip_grad": CLIP_GRAD,
            "compiled": False,
            "parameters_of_rank": self.parameter_count,
        }


def _mean(loss_mask: Tensor, losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = (losses.float() * loss_mask).sum() / loss_mask.sum()
    return loss, {"loss": loss.detach()}


def _transformer_config(model: ModelConfig, tp_size: int) -> Any:
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_kv_heads,
        normalization=model.normalization,
        layernorm_epsilon=model.layernorm_epsilon,
        add_bias_linear=not model.disable_bias_linear,
        gated_linear_unit=model.is_gated,
        activation_func=F.silu if model.activation == "swiglu" else F.gelu,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tp_size,
        sequence_parallel=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        gradient_accumulation_fusion=False,
    )


def _gpt(config: Any, model: ModelConfig) -> nn.Module:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    spec = get_gpt_layer_local_spec(normalization=model.normalization)
    spec.submodules.self_attention.submodules.core_attention = SdpaCore
    gpt: nn.Module = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=model.padded_vocab_size(config.tensor_model_parallel_size),
        max_sequence_length=model.num_positions,
        position_embedding_type=model.position_embedding_type,
        rotary_base=model.rotary_base,
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
    )
    return gpt
