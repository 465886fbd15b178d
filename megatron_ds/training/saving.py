"""Saving a run: every rank's files first, then what describes them, then the pointer to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from megatron_ds.checkpoint import Layout, Manifest
from megatron_ds.checkpoint.commit import commit, make_room
from megatron_ds.checkpoint.pending import PendingFiles
from megatron_ds.checkpoint.retention import Retention
from megatron_ds.config.blocks import RunConfig
from megatron_ds.data import TrainingOrder
from megatron_ds.engine.base import TrainEngine
from megatron_ds.engine.exchange import Exchange
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.models import LayerDef
from megatron_ds.mpu import ModelParallelUnit, ShardSpec
from megatron_ds.training.job import UNJUDGED, Judgement
from megatron_ds.utils.logging import logger

# After an error, for a checkpoint that is being written. Launchers end processes after half a minute.
_SECONDS_AFTER_ERROR = 20.0


@dataclass(frozen=True)
class _Save:
    """One checkpoint on its way to the disk. Every rank has one.

    Attributes:
        folder: of the run.
        pending: this rank's files.
        manifest: what describes the checkpoint, on rank 0; None elsewhere.
        retention: which older checkpoints stay.
        exchange: with the other ranks.
        start: when it was begun, in seconds of the monotonic clock.
    """

    folder: Path
    pending: PendingFiles
    manifest: Manifest | None
    retention: Retention
    exchange: Exchange
    start: float

    def complete(self) -> Problem | None:
        """Writes what is not written, and makes the checkpoint valid when every rank's files are on disk.

        Returns:
            What kept it from being saved, the same on all ranks; None when all went well.
        """
        written = self.exchange.gather(self.pending.write())
        problem = None
        if self.manifest is not None:
            checkpoint = self.pending.folder
            problem = commit(self.folder, checkpoint.name, self.manifest, written)
            if problem is None:
                gib = sum(file.bytes for one in written for file in one.files.values()) / 2**30
                logger.info("saved %s (%.3g GiB, written in %.1f s)", checkpoint, gib, time.monotonic() - self.start)
                self.retention.remove_older(self.folder, self.manifest.progress["step"])
        return self.exchange.from_rank_0(problem)


@dataclass
class CheckpointSaver:
    """Writes checkpoints. Every rank calls it.

    As a context manager, it waits in the end for the checkpoint that is being written.

    Attributes:
        run: the run.
        specs: how every parameter of the whole model is cut, by canonical name.
        engine: holds the model.
        mpu: where this rank sits.
        layers: the model's list of layers.
        training_order: what the order of the run's samples depends on; None where that is not known. Rank 0's counts.
        saved_step: the step of its last checkpoint, which it does not save again; None while there is none.
    """

    run: RunConfig
    specs: Mapping[str, ShardSpec]
    engine: TrainEngine
    mpu: ModelParallelUnit
    layers: Sequence[LayerDef]
    training_order: TrainingOrder | None
    saved_step: int | None = None
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "saving"), init=False)
    _exchange: Exchange | None = field(default=None, init=False)
    _in_flight: Future[Problem | None] | None = field(default=None, init=False)

    def __call__(self, folder: Path, judgement: Judgement = UNJUDGED) -> None:
        """Saves the present state under ``folder/global_step<N>`` and points ``latest`` at it.

        With ``--async-save`` it returns when the state is copied, and first waits for the checkpoint before. A step
        that is saved already is not saved again.

        Args:
            folder: of the run.
            judgement: what an evaluation said about this state.

        Raises:
            CheckpointError: this checkpoint, or the one before it, could not be written. On all ranks.
        """
        self.finish()
        step = self.engine.progress.step
        if step == self.saved_step:
            return
        start = time.monotonic()
        in_background = self.run.checkpoint.async_save
        exchange = self._exchange_of(in_background)
        no_room = make_room(folder, f"global_step{step}") if self.mpu.global_rank == 0 else None
        _raise_problem(exchange.from_rank_0(no_room))
        save = _Save(
            folder,
            self.engine.save(folder, in_background=in_background),
            self._manifest(judgement) if self.mpu.global_rank == 0 else None,
            Retention.of(self.run.checkpoint),
            exchange,
            start,
        )
        self.saved_step = step
        if in_background:
            self._in_flight = self._threads.submit(save.complete)
        else:
            _raise_problem(save.complete())

    @property
    def has_failed(self) -> bool:
        """Whether this rank knows that the checkpoint in flight could not be written."""
        flight = self._in_flight
        return flight is not None and flight.done() and (flight.exception() or flight.result()) is not None

    def finish(self) -> None:
        """Waits for the checkpoint that is being written. Every rank calls it.

        Raises:
            CheckpointError: it could not be written.
        """
        flight, self._in_flight = self._in_flight, None
        if flight is not None:
            _raise_problem(flight.result())

    def _exchange_of(self, in_background: bool) -> Exchange:
        if self._exchange is None:
            self._exchange = Exchange.for_background() if in_background else Exchange()
        return self._exchange

    def _manifest(self, judgement: Judgement) -> Manifest:
        return Manifest(
            progress=self.engine.progress.to_json(),
            layout=Layout.of(self.run),
            model=self.run.model.model_dump(),
            parameters={name: spec.to_json() for name, spec in self.specs.items()},
            options=self.run.model_dump(),
            training_order=self.training_order.to_json() if self.training_order else {},
            layers=[layer.tied_to or layer.name for layer in self.layers],
            stages=[[stage.start, stage.stop] for stage in self.engine.stages()],
            loss_scaler=self.engine.loss_scaler_state(),
            score=judgement.score,
            metrics=dict(judgement.metrics),
        )

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif self._in_flight is not None:
            wait_for([self._in_flight], timeout=_SECONDS_AFTER_ERROR)


def _raise_problem(problem: Problem | None) -> None:
    if problem is not None:
        raise CheckpointError(problem)
