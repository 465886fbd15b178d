"""Ending a run before its last step, on all ranks after the same step: by a signal, a time or a number of steps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from megatron_ds.config.blocks import CheckpointConfig
from megatron_ds.engine.failure import lost_a_peer

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes note of SIGTERM and SIGINT, instead of ending at once.

    The second SIGINT ends the process at once, as the first one would have done. Used as a context manager, in the main
    thread.

    Args:
        announce: tells the user that a signal was noted.

    Attributes:
        received: name of the first signal; None while there was none.
    """

    def __init__(self, *, announce: bool) -> None:
        self._announce = announce
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received == "SIGTERM" and error is not None and lost_a_peer(error):
            # The launcher ends this process because of the other one. The error would say nothing about it.
            signal.raise_signal(signal.SIGTERM)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number).name
            if self._announce:
                # Not the logger: it may be at work already, where the signal came in between. The terminal may be gone.
                with suppress(OSError):
                    os.write(2, f"{self.received}: the run ends after a step that all ranks agree on\n".encode())
        if number == signal.SIGINT:
            # A handler in Python would wait for the collective that the process may be in.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Agreement:
    """Has all ranks stop after the same step when one of them wants to, without a collective in each step.

    A rank that wants to stop leaves word in the store. Rank 0 looks for it before each step and, when it is there,
    writes down that the *next* step is the last one. Every rank looks for that after each step. It can't miss it: the
    gradient norm of a step, which every rank has read by then, has a part of rank 0's that was worked out later.

    Attributes:
        store: where the processes met.
        rank: this rank.
        world_size: number of ranks.
    """

    store: Store
    rank: int
    world_size: int
    _asked: bool = field(default=False, init=False)
    _decision: tuple[int, str] | None = field(default=None, init=False)

    def reason(self, step: int, wish: str | None) -> str | None:
        """Why the run ends after this step; None when it goes on. Every rank calls it after every step.

        Args:
            step: the step.
            wish: why this rank wants to stop; None when it does not.
        """
        if self.world_size == 1:
            return wish
        if self._decision is None:
            self._decision = self._decide(step, wish) if self.rank == 0 else self._look(wish)
        return self._decision[1] if self._decision is not None and step >= self._decision[0] else None

    def _decide(self, step: int, wish: str | None) -> tuple[int, str] | None:
        if wish is None and self.store.check([_key("wish")]):
            wish = self.store.get(_key("wish")).decode()
        if wish is None:
            return None
        self.store.set(_key("decision"), f"{step + 1} {wish}")
        return step + 1, wish

    def _look(self, wish: str | None) -> tuple[int, str] | None:
        if wish is not None and not self._asked:
            self.store.set(_key("wish"), f"{wish} (rank {self.rank})")
            self._asked = True
        if not self.store.check([_key("decision")]):
            return None
        step, reason = self.store.get(_key("decision")).decode().split(" ", 1)
        return int(step), reason


def _key(name: str) -> str:
    # torchrun keeps its store over restarts.
    return f"megatron_ds/stop/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


@dataclass(frozen=True)
class Stopping:
    """Tells after each step whether the run ends there.

    Attributes:
        checkpoint: its ``exit_interval`` and ``exit_duration_in_mins``.
        start: `time.monotonic` at the start of the process.
        signals: what the process was told.
        save_failed: whether a checkpoint that is written in the background has failed.
        agreement: with the other ranks.
    """

    checkpoint: CheckpointConfig
    start: float
    signals: StopSignals
    save_failed: Callable[[], bool]
    agreement: Agreement

    def __call__(self, step: int) -> str | None:
        """Why the run ends after this step, the same on all ranks; None when it goes on."""
        interval = self.checkpoint.exit_interval
        if interval is not None and step % interval == 0:
            return f"exit_interval {interval}"
        return self.agreement.reason(step, self._wish())

    def _wish(self) -> str | None:
        if self.signals.received is not None:
            return self.signals.received
        if self.save_failed():
            return "a checkpoint could not be saved"
        minutes = self.checkpoint.exit_duration_in_mins
        if minutes is not None and time.monotonic() - self.start >= minutes * 60:
            return f"exit_duration_in_mins {minutes:g}"
        return None
