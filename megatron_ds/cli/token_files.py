"""What the commands that write token files share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megatron_ds.errors import DataError, Problem


@contextmanager
def named_io_errors(output_prefix: str) -> Iterator[None]:
    """Turns what the system says about reading the input or writing the output into a message.

    Args:
        output_prefix: the files that are written in the block.

    Raises:
        DataError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            Problem(
                f"the input can't be read, or {output_prefix} can't be written: {error}",
                advice="check permissions and free space; nothing was written",
            )
        ) from None
