"""How far a long command is: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

from megatron_ds.data.write_tokens import Advance
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted


class _QuietBar(tqdm):  # type: ignore[misc]
    """A progress bar without tqdm's monitor thread: worker processes are forked from this one."""

    monitor_interval = 0


class Progress:
    """Shows bytes, tokens, their rates and the time that is left, from the start of its ``with`` block to the end.

    Args:
        total_bytes: bytes of the whole input, or None when that is not known beforehand.
        log_interval: documents between two updates.
        log_interval_seconds: least time between two lines where there is no terminal.
    """

    def __init__(self, total_bytes: int | None, log_interval: int, log_interval_seconds: float) -> None:
        self._total_bytes = total_bytes
        self._log_interval = log_interval
        self._log_interval_seconds = log_interval_seconds
        self._start = self._last_line = time.perf_counter()
        self._num_lines = self._num_bytes = self._num_tokens = 0
        self._num_lines_shown = 0
        self._bar = _QuietBar(disable=True)

    def __enter__(self) -> Progress:
        self._start = self._last_line = time.perf_counter()
        # On a terminal only: a log file has no use for a bar.
        self._bar = _QuietBar(
            total=self._total_bytes, unit="B", unit_scale=True, disable=None, file=sys.stderr, desc="preprocess"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._update_bar()
        self._bar.close()

    def add(self, advance: Advance) -> None:
        """Counts a batch, and shows it when it is time."""
        self._num_lines += advance.num_lines
        self._num_bytes += advance.num_bytes
        self._num_tokens += advance.num_tokens
        if self._num_lines - self._num_lines_shown < self._log_interval:
            return
        if not self._bar.disable:
            self._update_bar()
        elif time.perf_counter() - self._last_line >= self._log_interval_seconds:
            self._last_line = time.perf_counter()
            logger.info("%s", self._line())
        else:
            return
        self._num_lines_shown = self._num_lines

    def _update_bar(self) -> None:
        self._bar.set_postfix_str(f"{self._tokens_per_second() / 1e6:.2f}M tokens/s", refresh=False)
        self._bar.update(self._num_bytes - self._bar.n)

    def _tokens_per_second(self) -> float:
        return self._num_tokens / self._seconds()

    def _seconds(self) -> float:
        return max(time.perf_counter() - self._start, 1e-9)

    def _line(self) -> str:
        bytes_per_second = self._num_bytes / self._seconds()
        parts = [
            counted(self._num_lines, "document"),
            f"{self._num_bytes / 1e6:.1f} MB",
            f"{bytes_per_second / 1e6:.1f} MB/s",
            f"{self._tokens_per_second() / 1e6:.2f}M tokens/s",
        ]
        if self._total_bytes:
            parts[1] += f" of {self._total_bytes / 1e6:.1f}"
            seconds_left = max(0.0, self._total_bytes - self._num_bytes) / max(bytes_per_second, 1.0)
            parts.append(f"{_duration(seconds_left)} left")
        return " | ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
