"""Logging that knows its rank: code calls `logger.info`, the filter decides who prints."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from megatron_ds.utils.output import drop_output_if_unread

logger = logging.getLogger("megatron_ds")


class _RankFilter(logging.Filter):
    """Lets errors pass on every rank, with the rank's number, and everything else on rank 0 only."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = f"[rank {self.rank}] " if self.rank else ""
        return self.rank == 0 or record.levelno >= logging.ERROR


class _Handler(logging.StreamHandler[TextIO]):
    """Goes on in silence when nobody reads its stream any more: a run is worth more than its log lines."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not (isinstance(sys.exc_info()[1], BrokenPipeError) and drop_output_if_unread()):
            super().handleError(record)


def _rank_from_environment() -> int:
    # A rank that is no number is reported in preflight; until then it must not keep the report from being printed.
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0


def set_up_logging(rank: int | None = None, level: int = logging.INFO) -> None:
    """Sends the package's messages to standard output, from rank 0 only below the level of errors.

    Args:
        rank: this process's rank; taken from the environment's ``RANK`` when None (0 when unset).
        level: the least level that is printed.
    """
    handler = _Handler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(rank)s%(message)s"))
    handler.addFilter(_RankFilter(_rank_from_environment() if rank is None else rank))
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
