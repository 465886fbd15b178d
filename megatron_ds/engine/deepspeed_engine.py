"""What both engines share: the learning rate, the result of a step, saving and loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm

from megatron_ds.checkpoint.pending import PendingFiles
from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.data.batch import TrainingBatch
from megatron_ds.engine.base import EvalResult, LearningRate, StepResult, TrainProgress
from megatron_ds.engine.checkpoint_writer import install_writer
from megatron_ds.engine.grad_norm import ClipBeforeStep
from megatron_ds.engine.load import ShardReader, WholeWeights, load_parameters
from megatron_ds.engine.losses import LossSum, outputs_in_order, weighted_targets
from megatron_ds.engine.not_finite import first_of_all_ranks, noting_not_finite
from megatron_ds.engine.optimizer import catch_up
from megatron_ds.engine.weights import replicas_differ
from megatron_ds.mpu import ModelParallelUnit

# What DeepSpeed's DynamicLossScaler changes from step to step.
_LOSS_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class DeepSpeedEngineBase(ABC):
    """Base of `ZeroTrainEngine` and `PipelineTrainEngine`.

    Args:
        deepspeed_engine: what ``deepspeed.initialize`` returned.
        losses: what the model is trained on.
        mpu: where this rank sits.
        seed: the run's seed, for dropout.
        learning_rate: the rate of the n-th update, counted from 1.
        clip: our own norm and clipping, at ZeRO stage 0; None where DeepSpeed's are used.
    """

    def __init__(
        self,
        deepspeed_engine: Any,
        losses: LossSum,
        mpu: ModelParallelUnit,
        *,
        seed: int,
        learning_rate: LearningRate,
        clip: ClipBeforeStep | None,
    ) -> None:
        self.deepspeed_engine = deepspeed_engine
        self.mpu = mpu
        self._losses = losses
        self.progress = TrainProgress()
        self._seed = seed
        self._first_step = 0  # the step whose dropout masks are those of a new run's first one
        self._learning_rate = learning_rate
        self._clip = clip
        self._writer = install_writer(deepspeed_engine, mpu.global_rank, mpu.device)
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
    def _run_step(self, batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]) -> None:
        """Forward, backward and update; `losses` hears of each micro-batch."""

    @abstractmethod
    def _run_forward(self, batches: Sequence[TrainingBatch], targets: Sequence[tuple[Tensor, ...]]) -> None:
        """The same without dropout, gradients and update."""

    def train_step(self, batches: Sequence[TrainingBatch]) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches of one global batch."""
        engine = self.deepspeed_engine
        assert len(batches) == engine.gradient_accumulation_steps(), "the loader cuts batches as configured"
        rate = self._learning_rate(self.progress.step - self.progress.skipped_steps + 1)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        loss_scale = float(getattr(engine.optimizer, "cur_scale", None) or engine.loss_scale() or 1.0)
        skipped_before = engine.skipped_steps

        self.mpu.seed_step(self._seed, self.progress.step - self._first_step)
        on_device = self._on_device(batches)
        targets, _ = weighted_targets(on_device, self._losses.names, self.mpu)
        self._run_step(on_device, targets)
        losses = self._losses.take(len(batches))

        skipped = engine.skipped_steps > skipped_before or (self._clip is not None and self._clip.skipped)
        self.progress = self.progress.after_step(engine.train_batch_size(), skipped)
        norm = self._clip.last_norm if self._clip is not None else engine.get_global_grad_norm()
        return StepResult(losses, float(norm), rate, skipped, loss_scale)

    def evaluate(self, batches: Sequence[TrainingBatch], *, outputs: bool = False) -> EvalResult:
        """The losses of the ranks' micro-batches, without dropout and without gradients.

        Args:
            batches: this rank's, of one global batch.
            outputs: return what the model gave for them too; for models that give a row of scores per sequence.
        """
        on_device = self._on_device(batches)
        targets, counts = weighted_targets(on_device, self._losses.names, self.mpu)
        if not outputs:
            self._run_forward(on_device, targets)
            return EvalResult(self._losses.take(len(batches)), counts)
        with self._losses.keeping_outputs() as kept:
            self._run_forward(on_device, targets)
        rows = len(on_device[0].inputs[0])
        return EvalResult(self._losses.take(len(batches)), counts, outputs_in_order(kept, rows, len(batches), self.mpu))

    def _on_device(self, batches: Sequence[TrainingBatch]) -> list[TrainingBatch]:
        return [batch.to(self.mpu.device) for batch in batches]

    def save(self, folder: Path, *, in_background: bool = False) -> PendingFiles:
        """Writes this rank's files of ``folder/global_step<N>``, or copies what they will hold.

        Args:
            folder: of the run.
            in_background: only copies: `PendingFiles.write` writes, in any thread. One at a time.

        Returns:
            The files. A failure to write them is told by `PendingFiles.write`, not raised.
        """
        tag = f"global_step{self.progress.step}"
        pending = self._writer.begin(folder / tag, in_background=in_background)
        self.deepspeed_engine.save_checkpoint(
            str(folder), tag=tag, client_state={"progress": self.progress.to_json()}, save_latest=False
        )
        self._writer.finish()
        return pending

    def load(
        self, checkpoint: CheckpointReader, *, optimizer: bool = True, progress: bool = True, dropout: bool = True
    ) -> None:
        """Restores a checkpoint of any layout: each rank reads what it will hold.

        Args:
            checkpoint: the checkpoint.
            optimizer: restore the optimizer's moments and fp16's loss scale, not only weights (in fp32, where saved).
            progress: restore `progress`; without it the run begins at step 0.
            dropout: go on with the masks of the next steps; without it with those of a run that begins.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        saved = checkpoint.manifest
        with_moments = optimizer and checkpoint.has_optimizer
        updates = saved.progress["step"] - saved.progress["skipped_steps"]
        shards = ShardReader(checkpoint, self.mpu, with_moments, updates)
        quiet = True if self.mpu.global_rank else None  # None: a bar where there is a terminal
        named = tqdm(list(self.named_parameters()), desc="loading", disable=quiet, leave=False)
        load_parameters(self.deepspeed_engine, named, shards)
        if progress:
            self.progress = TrainProgress(**saved.progress)
        if not dropout:
            self._first_step = self.progress.step
        if with_moments:
            catch_up(self.deepspeed_engine.basic_optimizer, updates)
            for name, value in saved.loss_scaler.items():
                setattr(self.deepspeed_engine.optimizer.loss_scaler, name, value)

    def load_weights(self, weights: ModelWeights, names: Collection[str]) -> None:
        """Takes some of the weights from elsewhere. The optimizer's state, `progress` and other weights stay.

        Args:
            weights: of a model in which these weights have the same shapes, at any layout and in any dtype.
            names: canonical names of what is taken.
        """
        named = [(name, parameter) for name, parameter in self.named_parameters() if name in names]
        load_parameters(self.deepspeed_engine, named, WholeWeights(weights, self.mpu))

    def loss_scaler_state(self) -> dict[str, float]:
        """fp16: the state of dynamic loss scaling, for the checkpoint's manifest; empty otherwise."""
        scaler = getattr(self.deepspeed_engine.optimizer, "loss_scaler", None)
        return {name: getattr(scaler, name) for name in _LOSS_SCALER_STATE if getattr(scaler, "dynamic", False)}

    def differing_replicas(self) -> list[str]:
        """Names of this rank's uncut parameters whose copies on tensor-parallel ranks are not equal to the bit."""
        return replicas_differ(self.named_parameters(), self.mpu)

    def first_not_finite(self, batches: Sequence[TrainingBatch]) -> str | None:
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
