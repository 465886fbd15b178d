"""``megatron-ds checkpoint import``: weights of other programs as a checkpoint of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron_ds.cli import checkpoint_huggingface
from megatron_ds.cli.checkpoint_formats import Format, run_format

FORMATS: Mapping[str, Format] = {"hf": checkpoint_huggingface.IMPORT}


def main(argv: Sequence[str]) -> None:
    """Writes a checkpoint of ours with the weights of another program's.

    Args:
        argv: the command line after ``megatron-ds checkpoint import``.

    Raises:
        ConfigError: an option is wrong.
        CheckpointError: the input is missing, broken, or a model that ours can't express; or nothing can be written.
    """
    run_format(argv, "import", "--from", FORMATS, "Makes a checkpoint from weights of other programs.")
