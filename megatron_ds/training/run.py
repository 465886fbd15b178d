"""From a checked run to a trained model: the steps between the command line and the training loop, for any job."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import torch

from megatron_ds.checkpoint import FoundCheckpoint, Layout, changed_options, progress_of
from megatron_ds.checkpoint.reader import CheckpointReader
from megatron_ds.checkpoint.run_lock import RunLock
from megatron_ds.config import ResolvedRun, write_resolved
from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.report import DEEPSPEED_FILE, RUN_FILE
from megatron_ds.engine.base import TrainEngine, TrainProgress
from megatron_ds.engine.distributed import start_distributed, stop_distributed
from megatron_ds.models import AttentionScheme, Recompute, check_kernel, model_losses, whole_model_specs
from megatron_ds.models.dtypes import COMPUTE_DTYPES
from megatron_ds.mpu import ModelParallelUnit, ShardSpec
from megatron_ds.optim.schedule import LearningRateSchedule
from megatron_ds.training.job import Judgement, TrainingJob
from megatron_ds.training.loop import train
from megatron_ds.training.metrics import METRICS_FILE
from megatron_ds.training.reporter import Reporter
from megatron_ds.training.run_folder import set_aside, writing_into
from megatron_ds.training.saving import CheckpointSaver
from megatron_ds.training.stage_table import stage_table
from megatron_ds.training.starts import STARTS_FILE, Start, note_start
from megatron_ds.training.stopping import Agreement, Stopping, StopSignals
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted


def run_training(
    resolved: ResolvedRun, job: TrainingJob, found: FoundCheckpoint | None, lock: RunLock | None = None
) -> None:
    """Trains the model that `resolved` describes. Called by every process.

    Args:
        resolved: the run, checked, with its vocabulary size known.
        job: what it is trained on.
        found: the checkpoint to go on from.
        lock: of the folder of ``--save``, in the one process that holds it.
    """
    start = time.monotonic()
    run = resolved.run
    parallel = run.parallel
    joined = start_distributed(parallel.distributed_timeout_minutes)
    # Importing DeepSpeed before the process group's environment is set would make it guess the accelerator.
    from megatron_ds.engine.build import build_engine

    mpu = ModelParallelUnit.create(
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        joined.device,
        timedelta(minutes=parallel.distributed_timeout_minutes),
        sequence_parallel=parallel.sequence_parallel,
    )
    samples = job.open(joined, mpu, progress_of(found, run))
    schedule = LearningRateSchedule.from_config(run.optimizer, run.training.train_iters)
    losses = model_losses(run.model, mpu)
    engine = build_engine(run, resolved.deepspeed, job.layers(mpu), losses, mpu, schedule.learning_rate)
    begins_with: list[str] = []
    if found is not None:
        _load(run, engine, found)
    else:
        begins_with = job.begin(engine)
    began = engine.progress
    if run.checkpoint.save is not None and mpu.global_rank == 0:
        _note_options(resolved, Path(run.checkpoint.save), engine.progress, found.folder if found else None)
    specs = whole_model_specs(job.layers, mpu.topology)
    _say_what_runs(resolved, specs, engine, mpu, found)
    for line in begins_with:
        logger.info("%s", line)
    logger.info("attention: %s", _attention_kernel(run, mpu))
    if mpu.pp_size > 1:
        offline = ModelParallelUnit.offline(mpu.topology, device="meta")
        for line in stage_table(job.layers(offline), engine.stages(), specs):
            logger.info("%s", line)

    order = job.order() if mpu.global_rank == 0 else None
    saver = CheckpointSaver(run, specs, engine, mpu, job.layers(mpu), order)
    reporter = Reporter(run, mpu.global_rank, joined.device, engine.progress)
    with StopSignals(announce=mpu.global_rank == 0) as signals, reporter, saver:
        agreement = Agreement(joined.store, mpu.global_rank, run.world_size)
        stop = Stopping(run.checkpoint, start, signals, lambda: saver.has_failed, agreement)

        def save(folder: Path, judgement: Judgement) -> None:
            if lock is not None and lock.renew():
                logger.warning("%s was removed while the run went on: its earlier files are lost", folder)
                _note_options(resolved, folder, began, None)
                reporter.reopen(engine.progress)
            saver(folder, judgement)

        train(run, engine, samples, reporter, save, stop)
    stop_distributed()


def _note_options(resolved: ResolvedRun, folder: Path, progress: TrainProgress, loaded: Path | None) -> None:
    """Writes down what is in force: as the run's present options, and as those of the steps from here on."""
    run = resolved.run
    if progress.step < run.training.train_iters:  # else there is nothing that these options would describe
        with writing_into(folder):
            if progress.step == 0:
                set_aside(folder, (METRICS_FILE, STARTS_FILE, RUN_FILE, DEEPSPEED_FILE))
            write_resolved(resolved, folder)
            start = Start(progress.step, progress.consumed_samples, run.model_dump())
            note_start(folder, start, loaded)


def _load(run: RunConfig, engine: TrainEngine, found: FoundCheckpoint) -> None:
    options = run.checkpoint
    engine.load(
        CheckpointReader(found.folder / found.tag, found.manifest),
        optimizer=not (options.no_load_optim or options.finetune),
        progress=not options.finetune,
        dropout=not options.no_load_rng,
    )


def _attention_kernel(run: RunConfig, mpu: ModelParallelUnit) -> str:
    scheme = AttentionScheme(
        run.model,
        mpu,
        reset_attention_mask=run.data.reset_attention_mask,
        backend=run.training.attention_backend,
    )
    dtype = COMPUTE_DTYPES[run.training.precision]
    like = torch.empty(run.training.micro_batch_size, dtype=dtype, device=mpu.device)
    return check_kernel(run.model, mpu, scheme, like)


def _what_was_loaded(run: RunConfig, engine: TrainEngine, found: FoundCheckpoint) -> Iterator[str]:
    """What a checkpoint gave to this run: one line, and one more for what was left out or cut anew."""
    options, saved, progress = run.checkpoint, found.manifest, engine.progress
    where = f"loaded {found.folder / found.tag}"
    if options.finetune:
        yield f"{where}: weights of step {saved.progress['step']}; a new run begins with them at step 0"
    else:
        schedule = LearningRateSchedule.from_config(run.optimizer, run.training.train_iters)
        rate = schedule.learning_rate(progress.step - progress.skipped_steps + 1)
        yield (
            f"{where}: step {progress.step}, {counted(progress.consumed_samples, 'sample')} consumed, "
            f"next learning rate {rate:.2e}"
        )
        if options.no_load_optim or not saved.has_optimizer:
            why = "--no-load-optim" if options.no_load_optim else "the checkpoint has weights only"
            yield f"the optimizer's state is new: {why}"
        if options.no_load_rng:
            yield "dropout masks are those of a new run: --no-load-rng"
    if saved.layout != Layout.of(run):
        yield f"it was saved as {saved.layout}; this run is {Layout.of(run)}"


def _say_what_runs(
    resolved: ResolvedRun,
    specs: Mapping[str, ShardSpec],
    engine: TrainEngine,
    mpu: ModelParallelUnit,
    found: FoundCheckpoint | None,
) -> None:
    """The start-up message: what is in force, in a few lines."""
    run = resolved.run
    clip, model = run.optimizer.clip_grad, run.model
    parameters = sum(math.prod(spec.full_shape) for spec in specs.values())
    logger.info(
        "model: %s parameters, vocabulary of %d ids padded to %d",
        f"{parameters:,}",
        model.vocab_size,
        model.padded_vocab_size(run.parallel.tensor_model_parallel_size),
    )
    sequence = ", sequence-parallel" if mpu.sequence_parallel else ""
    logger.info("layout: %s%s on %s", Layout.of(run), sequence, counted(run.world_size, "process", "processes"))
    logger.info(
        "batch: %d micro x %d accumulated x %d data-parallel = %s of %d tokens",
        run.training.micro_batch_size,
        run.num_micro_batches,
        run.dp_size,
        counted(run.global_batch_size, "sample"),
        run.model.seq_length,
    )
    logger.info("%s", ", ".join(f"{key} {value}" for key, value in engine.facts().items()))
    if run.training.recompute is not None:
        logger.info("recomputed in the backward pass: %s", Recompute.of(run.training))
    logger.info("gradient clipping: %s (from %s)", clip or "off", resolved.origins["optimizer.clip_grad"])
    if found is not None:
        progress = engine.progress
        for line in _what_was_loaded(run, engine, found):
            logger.info("%s", line)
        for line in changed_options(found, run):
            logger.info("changed since that checkpoint: %s", line)
        if progress.step >= run.training.train_iters:
            logger.info("nothing to do: that is at or beyond train_iters=%d", run.training.train_iters)
