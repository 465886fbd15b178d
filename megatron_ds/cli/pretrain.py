"""``pretrain_gpt.py``: from the command line to `megatron_ds.training.pretrain`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from megatron_ds.cli.errors import report_before_launch, run_or_exit
from megatron_ds.cli.preflight import preflight
from megatron_ds.config import collect, describe, describe_draft, draft
from megatron_ds.errors import MegatronDsError
from megatron_ds.utils.logging import logger, set_up_logging


def main(argv: Sequence[str] | None = None) -> None:
    """Pretrains a GPT. Every process that the launcher starts calls this.

    Args:
        argv: the words after the program's name; the process's own by default.
    """
    set_up_logging()
    words = list(sys.argv[1:] if argv is None else argv)
    run_or_exit(lambda: _pretrain(words))


def _pretrain(argv: Sequence[str]) -> None:
    try:
        resolved, found = preflight(argv, os.environ)
    except MegatronDsError as error:
        _print_what_is_known(argv)
        report_before_launch(error)
    if resolved.print_config:
        logger.info(describe(resolved))
        return
    for note in resolved.notes:
        logger.info(note)
    # Torch and DeepSpeed take seconds to import, so everything above does without them.
    from megatron_ds.engine.failure import failing_together
    from megatron_ds.training.pretrain import pretrain

    with failing_together():
        pretrain(resolved, found)


def _print_what_is_known(argv: Sequence[str]) -> None:
    """What ``--print-config`` can tell of a run that has problems, of its options or others."""
    known = draft(argv, os.environ)
    if known.print_config:
        resolved, problems = collect(argv, os.environ)
        logger.info("%s\n", describe_draft(known) if resolved is None or problems else describe(resolved))


if __name__ == "__main__":
    main()
