"""What a run says while it trains: log lines, metrics.jsonl, monitors."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from megatron_ds.config.blocks import RunConfig
from megatron_ds.engine.base import StepResult, TrainProgress
from megatron_ds.training.flops import model_flops_per_step, peak_flops, throughput
from megatron_ds.training.job import Evaluation
from megatron_ds.training.metrics import EvalMetrics, MetricsWriter, StepMetrics, eval_log_line, log_line
from megatron_ds.training.monitors import build_monitors
from megatron_ds.utils.logging import logger


class Reporter:
    """Turns step results into reports every ``log_interval`` steps. All ranks hold one; rank 0's writes.

    Args:
        run: the run.
        rank: this process's rank.
        device: the device that trains.
        progress: where the run starts or goes on.
    """

    def __init__(self, run: RunConfig, rank: int, device: torch.device, progress: TrainProgress) -> None:
        self._run = run
        self._device = device
        self._writer: MetricsWriter | None = None
        self._monitors = build_monitors(run.logging, run.model_dump(), rank, resume_step=progress.step)
        if rank == 0 and run.checkpoint.save is not None:
            self._writer = MetricsWriter(Path(run.checkpoint.save), resume_step=progress.step)
        assert run.model.vocab_size is not None
        self._sequences = run.global_batch_size * run.task.sequences_per_sample
        self._flops = model_flops_per_step(run.model, self._sequences, run.model.vocab_size)
        on_cuda = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if on_cuda else "cpu"
        self._peak_flops = peak_flops(name, run.training.precision)
        self._first_step = progress.step + 1
        self._skipped = 0
        self._timed_steps = 0
        self._last_time = time.perf_counter()

    def step(self, progress: TrainProgress, result: StepResult) -> None:
        """Takes note of a step, and reports it when its turn has come."""
        training, logging = self._run.training, self._run.logging
        self._skipped += result.skipped
        self._timed_steps += 1
        if progress.step % logging.log_interval == 0 or progress.step in (self._first_step, training.train_iters):
            self._report(progress, result)

    def _report(self, progress: TrainProgress, result: StepResult) -> None:
        run = self._run
        losses = {
            name: float(loss) for name, loss in result.losses.items()
        }  # waits for the device, so the time is the steps' own
        seconds = (time.perf_counter() - self._last_time) / self._timed_steps
        tokens = self._sequences * run.model.seq_length
        speed = throughput(
            tokens=tokens,
            model_flops=self._flops,
            step_seconds=seconds,
            world_size=run.world_size,
            peak_flops_per_gpu=self._peak_flops,
        )
        metrics = StepMetrics(
            step=progress.step,
            consumed_samples=progress.consumed_samples,
            consumed_tokens=progress.consumed_samples * run.task.sequences_per_sample * run.model.seq_length,
            losses=losses,
            grad_norm=result.grad_norm,
            learning_rate=result.learning_rate,
            loss_scale=result.loss_scale if run.training.fp16 else None,
            skipped=self._skipped,
            step_seconds=seconds,
            tokens_per_second=speed.tokens_per_second,
            tokens_per_second_per_gpu=speed.tokens_per_second_per_gpu,
            model_tflops_per_gpu=speed.model_tflops_per_gpu,
            mfu=speed.mfu,
            peak_memory_gib=self._peak_memory_gib(),
        )
        logger.info(log_line(metrics, run.training.train_iters))
        self._publish(metrics, progress.step)
        self._skipped = 0
        self.restart_clock()

    def evaluation(self, progress: TrainProgress, split: str, found: Evaluation) -> None:
        """Reports an evaluation.

        Args:
            progress: how far the run has come.
            split: ``valid`` or ``test``.
            found: what came of one of its sets.
        """
        metrics = EvalMetrics.from_losses(
            step=progress.step, split=split, set=found.name, losses=found.losses, metrics=found.metrics
        )
        logger.info(eval_log_line(metrics, self._run.training.train_iters))
        self._publish(metrics, progress.step)

    def reopen(self, progress: TrainProgress) -> None:
        """Goes on in a new metrics.jsonl where the file is gone."""
        if self._writer is not None:
            self._writer.close()
            self._writer = MetricsWriter(Path(str(self._run.checkpoint.save)), resume_step=progress.step)

    def restart_clock(self) -> None:
        """Leaves out of the step time what happened since the last report: evaluation, saving."""
        self._timed_steps = 0
        self._last_time = time.perf_counter()

    def _publish(self, metrics: StepMetrics | EvalMetrics, step: int) -> None:
        if self._writer is not None:
            self._writer.write(metrics)
        for monitor in self._monitors:
            monitor.log(step, metrics.scalars())

    def _peak_memory_gib(self) -> float | None:
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device) / 2**30

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: Any) -> None:
        with ExitStack() as stack:
            for monitor in self._monitors:
                stack.callback(monitor.close)
            if self._writer is not None:
                stack.callback(self._writer.close)
