"""One failing rank ends all of them with its exit code, and its message is not lost among those of its peers.

A rank that fails breaks the connections of the ranks that wait for it. These fail a moment later, and a launcher
might take the code of any of them. So the first rank to fail writes its code into the store where the ranks have met,
and the others end with that code.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from megatron_ds.errors import MegatronDsError, Problem, TrainingError

# A launcher ends all ranks within a second or two of the first one's end, and so most often during this wait.
_SECONDS_FOR_CAUSE = 8.0


@dataclass(frozen=True)
class Failure:
    """The first failure of a run.

    Attributes:
        rank: that failed.
        exit_code: it ends with.
    """

    rank: int
    exit_code: int


class PeerError(MegatronDsError):
    """Another rank failed first; this one ends with its code."""

    def __init__(self, first: Failure, error: Exception) -> None:
        text = str(error) if isinstance(error, MegatronDsError) else f"{type(error).__name__}: {error}"
        here = text.splitlines()[0]
        super().__init__(
            Problem(
                f"rank {first.rank} failed first, with exit code {first.exit_code}; its message tells why",
                advice=f"here it showed as {here}",
            )
        )
        self.exit_code = first.exit_code


@contextmanager
def failing_together() -> Iterator[None]:
    """Makes the ranks that run the block fail with one exit code.

    Raises:
        PeerError: another rank failed before this one.
    """
    try:
        yield
    except Exception as error:
        first = _first_failure(error)
        if first is not None:
            raise PeerError(first, error) from error
        raise


def raise_if_peer_failed() -> None:
    """For a process that waits without a collective, which would have noticed.

    Raises:
        PeerError: another rank has failed.
        TrainingError: rank 0 is gone.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return
    waiting = TrainingError("waited for the other ranks")
    try:
        store = _store()
        if store.check([_key()]):
            rank, exit_code = store.get(_key()).decode().split()
            raise PeerError(Failure(int(rank), int(exit_code)), waiting)
    except (OSError, DistError) as error:
        raise TrainingError("rank 0 is gone, while this one waited for the others") from error


def lost_a_peer(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone."""
    return isinstance(error, DistError) or "gloo/transport" in str(error)


def _first_failure(error: Exception) -> Failure | None:
    """Another rank's failure, or None where this rank's is the first that is known."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return None
    code = error.exit_code if isinstance(error, MegatronDsError) else 1
    own = Failure(int(os.environ["RANK"]), code)
    try:
        store = _store()
        # A lost connection is no cause: whoever closed it may be about to tell why.
        deadline = time.monotonic() + (_SECONDS_FOR_CAUSE if lost_a_peer(error) else 0.0)
        while not store.check([_key()]) and time.monotonic() < deadline:
            time.sleep(0.05)
        rank, exit_code = store.compare_set(_key(), "", f"{own.rank} {own.exit_code}").split()
        first = Failure(int(rank), int(exit_code))
    except (OSError, DistError):
        # Rank 0 held the store and is gone, so it failed first. The launcher knows its code.
        time.sleep(_SECONDS_FOR_CAUSE)
        return None
    return None if first == own else first


def _store() -> TCPStore:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=5)
    # TCPStore would try again and again, with a stack trace each time.
    socket.create_connection((address, port), timeout=timeout.total_seconds()).close()
    return TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)


def _key() -> str:
    # torchrun keeps its store over restarts.
    return f"megatron_ds/first_failure/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
