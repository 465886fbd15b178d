"""How far a conversion of weights is: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor
from tqdm import tqdm

from megatron_ds.checkpoint.weights import ModelWeights
from megatron_ds.utils.logging import logger

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def with_progress(weights: ModelWeights, what: str) -> Iterator[ModelWeights]:
    """The same weights, of which each that is read is counted.

    Args:
        weights: read once from the first to the last.
        what: name of the command.
    """
    last_line = time.perf_counter()
    # On a terminal only: a log file has no use for a bar.
    with tqdm(total=len(weights.specs), unit=" parameters", disable=None, file=sys.stderr, desc=what) as bar:
        num_read = 0

        def read(name: str) -> Tensor:
            nonlocal num_read, last_line
            num_read += 1
            bar.update()
            if bar.disable and time.perf_counter() - last_line >= _SECONDS_BETWEEN_LINES:
                last_line = time.perf_counter()
                logger.info("%s: %d of %d parameters", what, num_read, len(weights.specs))
            return weights.read(name)

        yield replace(weights, read=read)
