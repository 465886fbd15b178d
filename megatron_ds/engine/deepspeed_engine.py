"""What both engines share: the learning rate, the result of a step, saving and loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from megatron_ds.data.batch import Batch
from megatron_ds.engine.base import EvalResult, LearningRate, StepResult, TrainProgress
from megatron_ds.engine.grad_norm import ClipBeforeStep
from megatron_ds.engine.not_finite import first_of_all_ranks, noting_not_finite
from megatron_ds.engine.optimizer import catch_up
from megatron_ds.engine.weights import replicas_differ
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.mpu import ModelParallelUnit


class DeepSpeedEngineBase(ABC):
    """Base of `ZeroTrainEngine` and `PipelineTrainEngine`.

    Args:
        deepspeed_engine: what ``deepspeed.initialize`` returned.
        mpu: where this rank sits.
        seed: the run's seed, for dropout.
        learning_rate: the rate of the n-th update, counted from 1.
        clip: our own norm and clipping, at ZeRO stage 0; None where DeepSpeed's are used.
    """

    def __init__(
        self,
        deepspeed_engine: Any,
        mpu: ModelParallelUnit,
        *,
        seed: int,
        learning_rate: LearningRate,
        clip: ClipBeforeStep | None,
    ) -> None:
        self.deepspeed_engine = deepspeed_engine
        self.mpu = mpu
        self.progress = TrainProgress()
        self._seed = seed
        self._learning_rate = learning_rate
        self._clip = clip
        scaler = getattr(deepspeed_engine.optimizer, "loss_scaler", None)
        if scaler is not None:
            # Its bare exception at the lowest scale; whoever counts skipped steps has more to say.
            scaler.raise_error_at_min_scale = False

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage in force."""
        return int(self.deepspeed_engine.zero_optimization_stage())

    @abstractmethod
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Canonical names and parameters of this rank."""

    @abstractmethod
    def stages(self) -> list[range]:
        """Places in the model's list of layers that each pipeline stage holds."""

    @abstractmethod
    def _run_step(self, batches: Sequence[Batch]) -> Tensor:
        """Forward, backward and update; returns the global batch's loss."""

    @abstractmethod
    def evaluate(self, batches: Sequence[Batch]) -> EvalResult:
        """The loss of this rank's micro-batches, without dropout and without gradients."""

    def train_step(self, batches: Sequence[Batch]) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches of one global batch."""
        engine = self.deepspeed_engine
        assert len(batches) == engine.gradient_accumulation_steps(), "the loader cuts batches as configured"
        rate = self._learning_rate(self.progress.step - self.progress.skipped_steps + 1)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        loss_scale = float(getattr(engine.optimizer, "cur_scale", None) or engine.loss_scale() or 1.0)
        skipped_before = engine.skipped_steps

        self.mpu.seed_step(self._seed, self.progress.step)
        loss = self._run_step(self._on_device(batches))

        skipped = engine.skipped_steps > skipped_before or (self._clip is not None and self._clip.skipped)
        self.progress = self.progress.after_step(engine.train_batch_size(), skipped)
        norm = self._clip.last_norm if self._clip is not None else engine.get_global_grad_norm()
        return StepResult(loss, float(norm), rate, skipped, loss_scale)

    def _on_device(self, batches: Sequence[Batch]) -> list[Batch]:
        return [batch.to(self.mpu.device) for batch in batches]

    def save(self, folder: Path) -> Path:
        """Writes ``global_step<N>`` into `folder`; returns that folder when every rank's files are written."""
        tag = f"global_step{self.progress.step}"
        self.deepspeed_engine.save_checkpoint(
            str(folder), tag=tag, client_state={"progress": self.progress.to_json()}, save_latest=False
        )
        torch.distributed.barrier()
        return folder / tag

    def load(self, folder: Path, tag: str) -> None:
        """Restores weights, optimizer and `progress` from one checkpoint of `folder`.

        Raises:
            CheckpointError: a file is missing or damaged, or does not fit this model.
        """
        try:
            with redirect_stdout(StringIO()):  # the bf16 optimizer prints the name of a function on every rank
                path, client_state = self.deepspeed_engine.load_checkpoint(str(folder), tag=tag)
        except Exception as error:  # whatever PyTorch and DeepSpeed raise over files that are not what they should be
            reason = (str(error).splitlines() or [""])[0] or "a file is missing"
            raise CheckpointError(
                Problem(
                    f"rank {self.mpu.global_rank} can't load {folder / tag}: {type(error).__name__}: {reason}",
                    advice=f"write the name of an older checkpoint into {folder / 'latest'}",
                )
            ) from error
        if path is None:
            raise CheckpointError(f"{folder / tag} holds no checkpoint that DeepSpeed can read")
        self.progress = TrainProgress(**client_state["progress"])
        catch_up(self.deepspeed_engine.basic_optimizer, self.progress.step - self.progress.skipped_steps)

    def differing_replicas(self) -> list[str]:
        """Names of this rank's uncut parameters whose copies on tensor-parallel ranks are not equal to the bit."""
        return replicas_differ(self.named_parameters(), self.mpu)

    def first_not_finite(self, batches: Sequence[Batch]) -> str | None:
        """Runs the forward pass on a step's micro-batches, without dropout.

        Returns:
            Canonical name of the first layer whose output is not finite, and the rank; None where all are.
        """
        with noting_not_finite(self.deepspeed_engine.module, self.named_parameters()) as found:
            self.evaluate(batches)
        return first_of_all_ranks(found)

    def facts(self) -> dict[str, Any]:
        """What runs here, for the start-up message: engine, optimizer, dtypes."""
        engine = self.deepspeed_engine
        model_dtype, accumulation_dtype = engine.get_data_types()
        return {
            "engine": type(self).__name__,
            "optimizer": f"{type(engine.optimizer).__name__} over {type(engine.basic_optimizer).__name__}"
            if engine.optimizer is not engine.basic_optimizer
            else type(engine.optimizer).__name__,
            "dtype": str(model_dtype).removeprefix("torch."),
            "gradient accumulation": str(accumulation_dtype).removeprefix("torch."),
        }


@torch.no_grad()
def average_over_data_parallel(value: Tensor, mpu: ModelParallelUnit) -> Tensor:
    """The mean of a scalar over the data-parallel ranks."""
    if mpu.dp_size == 1:
        return value
    value = value.clone()
    torch.distributed.all_reduce(value, group=mpu.dp_group)
    return value / mpu.dp_size
