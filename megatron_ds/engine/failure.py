"""One failing rank ends all of them with its exit code, and its message is not lost among those of its peers.

A rank that fails breaks the connections of the ranks that wait for it. These fail a moment later, and a launcher
might take the code of any of them. So the first rank to fail writes its code into the store where the ranks have met,
and the others end with that code. A rank that is killed writes nothing: then a rank that has lost a connection to it
writes that, after a wait.
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
        is_cause: False where it only lost a connection, and no other rank had told why.
    """

    rank: int
    exit_code: int
    is_cause: bool = True

    def to_text(self) -> str:
        """For the store."""
        return f"{self.rank} {self.exit_code} {int(self.is_cause)}"

    @classmethod
    def from_text(cls, text: str) -> Failure:
        """What `to_text` made."""
        rank, exit_code, is_cause = map(int, text.split())
        return cls(rank, exit_code, bool(is_cause))


class PeerError(MegatronDsError):
    """Another rank failed first; this one ends with its code."""

    def __init__(self, first: Failure, error: Exception) -> None:
        super().__init__(
            Problem(
                f"rank {first.rank} failed first, with exit code {first.exit_code}; its message tells why",
                advice=f"here it showed as {_first_line(error)}",
            )
        )
        self.exit_code = first.exit_code


class LostPeerError(MegatronDsError):
    """A connection to another rank broke, and no rank has told why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            Problem(
                "the connection to another rank broke, and no rank has told why: one of them may have been killed",
                advice="look for a rank that ended without a message (exit code -9 or 137: killed, most often for want "
                f"of memory) and for a host that is gone; here it showed as {_first_line(error)}",
            )
        )


def _first_line(error: Exception) -> str:
    text = str(error) if isinstance(error, MegatronDsError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]


@contextmanager
def failing_together() -> Iterator[None]:
    """Makes the ranks that run the block fail with one exit code.

    Raises:
        PeerError: another rank failed before this one.
        LostPeerError: another rank is gone, and no rank has told why.
    """
    try:
        yield
    except Exception as error:
        first = _first_failure(error)
        if first is not None and first.is_cause:
            raise PeerError(first, error) from error
        if lost_a_peer(error):
            raise LostPeerError(error) from error
        raise


def raise_if_peer_failed() -> None:
    """For a process that waits without a collective, which would have noticed.

    Raises:
        PeerError: another rank has failed.
        LostPeerError: another rank has lost the connection to one that told nothing.
        TrainingError: rank 0 is gone.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return
    waiting = TrainingError("waited for the other ranks")
    try:
        store = _store()
        if store.check([_key()]):
            first = Failure.from_text(store.get(_key()).decode())
            raise PeerError(first, waiting) if first.is_cause else LostPeerError(waiting)
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
    own = Failure(int(os.environ["RANK"]), code, is_cause=not lost_a_peer(error))
    try:
        store = _store()
        # A lost connection is no cause: whoever closed it may be about to tell why.
        deadline = time.monotonic() + (0.0 if own.is_cause else _SECONDS_FOR_CAUSE)
        while not store.check([_key()]) and time.monotonic() < deadline:
            time.sleep(0.05)
        first = Failure.from_text(store.compare_set(_key(), "", own.to_text()).decode())
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
