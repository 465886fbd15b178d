"""`InferenceModel`: this rank's part of a model of any family, which gives scores and is never trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.config.partition import even_counts, stage_bounds
from megatron_ds.engine.construction import LayerBuilder
from megatron_ds.models import (
    NO_RECOMPUTE,
    Activations,
    AttentionScheme,
    LayerDef,
    ParallelTransformerLayer,
    SequentialModel,
    model_layers,
)
from megatron_ds.models.sequential import Step
from megatron_ds.mpu import ModelParallelUnit, ShardSpec, gather_from_tensor_parallel, shard_spec


class InferenceModel:
    """A model cut over tensor-parallel ranks and dealt to pipeline stages, for any layout and without DeepSpeed.

    Every rank of a model makes the same calls with the same arguments. Replicas know nothing of each other: each may be
    asked for something else.

    Args:
        config: the architecture, with its vocabulary size known.
        mpu: where this rank sits.
        dtype: of the weights, and what layers compute in.
        reset_position_ids: see `model_layers`; the model then takes document ids beside tokens.
        reset_attention_mask: likewise.
    """

    def __init__(
        self,
        config: ModelConfig,
        mpu: ModelParallelUnit,
        dtype: torch.dtype,
        *,
        reset_position_ids: bool = False,
        reset_attention_mask: bool = False,
    ) -> None:
        resets = {"reset_position_ids": reset_position_ids, "reset_attention_mask": reset_attention_mask}
        layers = model_layers(config, mpu, **resets, attention_backend="inference")
        own = _stages(layers, mpu.pp_size)[mpu.pp_rank]
        self.config = config
        self.mpu = mpu
        self.is_last_stage = mpu.pp_rank == mpu.pp_size - 1
        self._ids_travel = AttentionScheme(config, mpu, **resets, backend="inference").reads_documents
        self._stream_dtype = torch.float32 if config.fp32_residual_connection else dtype
        self._stage = SequentialModel(layers[own.start : own.stop], LayerBuilder(dtype, mpu, NO_RECOMPUTE)).eval()

    @property
    def num_layers(self) -> int:
        """Layers of the model's definition that are on this rank."""
        return self._stage.num_layers

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self._stage.parameters()).dtype

    @torch.no_grad()
    def load(self, read_shard: Callable[[str, ShardSpec], Tensor]) -> None:
        """Fills this rank's part, one parameter at a time.

        Args:
            read_shard: from a canonical name and how this model cuts the parameter, to this rank's shard in any dtype.
        """
        for name, parameter in self._stage.named_parameters():
            parameter.copy_(read_shard(name, shard_spec(parameter)))

    @torch.inference_mode()
    def logits(self, tokens: Tensor, *, at: Tensor | None = None, prefix: Tensor | None = None) -> Tensor | None:
        """Scores of the token after each token.

        A token sees only those before it, so rows may be filled up at their right end with any tokens.

        Args:
            tokens: int64 ``[B, S]`` on this rank's device.
            at: the one place in each row whose scores are wanted and worked out, int64 ``[B]``; None for all places.
            prefix: of a prefix-LM, how many tokens of each row see each other in both directions, int64 ``[B]``; None
                for none. Other models take no notice.

        Returns:
            ``[B, S, V]``, or ``[B, V]`` with `at`, without the vocabulary's padding, on all ranks of the last stage;
            None on the others. `from_last_stage` passes on what was made of them.
        """
        hidden = self.hidden(tokens, prefix=prefix)
        if hidden is None:
            return None
        if at is not None:
            # [S, B, H] -> [1, B, H]
            hidden = hidden[at, torch.arange(len(at), device=at.device)].unsqueeze(0)
        scores = gather_from_tensor_parallel(self.head(hidden), self.mpu)[..., : self.config.vocab_size]
        return scores.transpose(0, 1) if at is None else scores[0]

    @torch.inference_mode()
    def hidden(self, tokens: Tensor, *, prefix: Tensor | None = None) -> Tensor | None:
        """What a language model's head gets, for whoever needs the scores of some tokens only.

        Args:
            tokens: see `logits`.
            prefix: see `logits`.

        Returns:
            ``[S, B, H]`` on all ranks of the last stage; None on the others.
        """
        ids = self._prefix_ids(tokens, prefix)
        outputs = self._run(tokens if ids is None else (tokens, ids), self._stage.steps[:-1])
        assert outputs is None or isinstance(outputs, Tensor), "ids end before the head"
        return outputs

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """This rank's slice of the scores, padding included: ``[S, B, H] -> [S, B, V/tp]``; on the last stage."""
        scores = self._stage.steps[-1](hidden)
        assert isinstance(scores, Tensor)
        return scores

    @torch.inference_mode()
    def outputs(self, inputs: Activations) -> Activations | None:
        """What the last layer of a model of any family returns.

        Args:
            inputs: what its first layer takes, on this rank's device: one tensor or a tuple, tokens ``[B, S]`` first,
                and what layers read beside the residual stream last.

        Returns:
            The outputs on all ranks of the last stage; None on the others.
        """
        return self._run(inputs, self._stage.steps)

    def _run(self, inputs: Activations, last_steps: Sequence[Step]) -> Activations | None:
        """Runs all stages; the last one runs `last_steps` only."""
        outputs = inputs if self.mpu.pp_rank == 0 else self._receive(inputs)
        for step in last_steps if self.is_last_stage else self._stage.steps:
            outputs = step(outputs)
        if self.is_last_stage:
            return outputs
        self._send(outputs)
        return None

    def from_last_stage(self, values: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Makes known to all ranks of the model what the last stage has found.

        Args:
            values: of `shape` and `dtype` on the last stage; anything elsewhere. Those of its first rank count.
            shape: of the values.
            dtype: of the values.
        """
        mpu = self.mpu
        if mpu.tp_size == mpu.pp_size == 1:
            assert values is not None
            return values
        source = mpu.topology.rank(mpu.pp_size - 1, mpu.dp_rank, 0)
        if mpu.global_rank == source:
            assert values is not None
            buffer = values.contiguous()
        else:
            buffer = torch.empty(shape, dtype=dtype, device=mpu.device)
        dist.broadcast(buffer, source, group=mpu.model_parallel_group)
        return buffer

    def _prefix_ids(self, tokens: Tensor, prefix: Tensor | None) -> Tensor | None:
        """Of a prefix-LM, 0 for the tokens of the prefix and 1 for the others, int32 ``[B, S]``."""
        if not self.config.prefix_lm:
            return None
        if prefix is None:
            return torch.ones_like(tokens, dtype=torch.int32)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return (places >= prefix.unsqueeze(1)).to(torch.int32)

    def _receive(self, inputs: Activations) -> Activations:
        """The residual stream ``[S, B, H]`` from the stage before, with the ids that layers read, which all know."""
        tokens = inputs if isinstance(inputs, Tensor) else inputs[0]
        batch, sequence = tokens.shape
        hidden = torch.empty(sequence, batch, self.config.hidden_size, dtype=self._stream_dtype, device=self.mpu.device)
        dist.recv(hidden, self._neighbour(-1), group=self.mpu.pp_group)
        return (hidden, inputs[-1]) if self._ids_travel else hidden

    def _send(self, outputs: Activations) -> None:
        """Sends the residual stream to the next stage, which knows the ids already."""
        hidden = outputs if isinstance(outputs, Tensor) else outputs[0]
        dist.send(hidden.contiguous(), self._neighbour(1), group=self.mpu.pp_group)

    def _neighbour(self, stages: int) -> int:
        """The global rank with the same part of the layers, so many stages further on."""
        mpu = self.mpu
        return mpu.topology.rank(mpu.pp_rank + stages, mpu.dp_rank, mpu.tp_rank)


def _stages(layers: list[LayerDef], pp_size: int) -> list[range]:
    """Places in the list of layers that each stage holds: even numbers of transformer layers."""
    is_block = [issubclass(layer.module_type, ParallelTransformerLayer) for layer in layers]
    bounds = stage_bounds(is_block, even_counts(sum(is_block), pp_size))
    return [range(start, stop) for start, stop in pairwise(bounds)]
