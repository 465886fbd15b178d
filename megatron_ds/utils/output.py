"""Standard output whose reader may go away, as with ``| head``."""

from __future__ import annotations

import os
import select
import sys


def drop_output_if_unread() -> bool:
    """Sends standard output nowhere from the moment that nobody reads it any more.

    Without this, Python tells of the closed pipe once more when it ends.

    Returns:
        Whether the reader is gone.
    """
    try:
        output = sys.stdout.fileno()
    except (AttributeError, OSError):
        return False  # something that a test put in its place, or none
    # What failed to be written may be forgotten, so that another attempt to write it would tell nothing.
    poll = select.poll()
    poll.register(output, select.POLLERR)
    if not poll.poll(0):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
    return True
