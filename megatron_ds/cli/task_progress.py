"""How far a task is: a bar on a terminal, else a line from time to time; in the first process only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from megatron_ds.utils.logging import logger

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def task_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives what is called with each number of pieces that is done.

    Args:
        what: is counted.
        total: how many there are.
    """
    speaks = os.environ.get("RANK", "0") == "0"
    done, last_line = 0, time.perf_counter()
    # On a terminal only: a log file has no use for a bar.
    with tqdm(total=total, desc=what, disable=None if speaks else True, file=sys.stderr) as bar:

        def advance(count: int) -> None:
            nonlocal done, last_line
            done += count
            bar.update(count)
            if speaks and bar.disable and time.perf_counter() - last_line >= _SECONDS_BETWEEN_LINES:
                last_line = time.perf_counter()
                logger.info("%s: %d of %d", what, done, total)

        yield advance
