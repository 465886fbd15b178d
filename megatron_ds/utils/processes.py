"""What processes that another one has started have to do themselves."""

from __future__ import annotations

import os
import threading
import time

SECONDS_BETWEEN_LOOKS = 1.0


def end_with_parent() -> None:
    """Ends this process soon after its parent is gone.

    A process that waits for work would wait for ever when its parent is killed: the pipe it waits at stays open, as
    its sisters have the other end as well.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True, name="end with parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)
