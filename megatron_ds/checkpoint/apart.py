"""What a tool writes has to lie apart from what it reads."""

from __future__ import annotations

from pathlib import Path

from megatron_ds.errors import CheckpointError, Problem, Source


def check_apart(output: Path, source: Path) -> None:
    """Refuses a place in the folder of the checkpoint that is read: it would no longer be as it was saved.

    Args:
        output: file or folder to write; it need not exist.
        source: the folder that is read.

    Raises:
        CheckpointError: `output` is `source`, or inside of it.
    """
    there, read = output.resolve(), source.resolve()
    if there == read or read in there.parents:
        where = "is" if there == read else "is inside of"
        raise CheckpointError(
            Problem(
                f"{output} {where} the folder that is read, and nothing is added to it",
                (Source("output", str(output), "--output"), Source("folder", str(source), "--input")),
                "give a place outside of it to --output",
            )
        )
