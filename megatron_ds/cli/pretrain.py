"""``pretrain_gpt.py`` and ``pretrain_bert.py``: from the command line to `megatron_ds.training.pretrain`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from megatron_ds.cli.errors import report_before_launch, run_or_exit
from megatron_ds.cli.preflight import preflight
from megatron_ds.config import describe
from megatron_ds.errors import MegatronDsError
from megatron_ds.utils.logging import logger, set_up_logging


def main(family: str = "gpt", argv: Sequence[str] | None = None) -> None:
    """Pretrains a model. Every process that the launcher starts calls this.

    Args:
        family: of the model, a value of ``model_type``.
        argv: the words after the program's name; the process's own by default.
    """
    set_up_logging()
    words = list(sys.argv[1:] if argv is None else argv)
    run_or_exit(lambda: _pretrain(family, words))


def _pretrain(family: str, argv: Sequence[str]) -> None:
    try:
        resolved, found = preflight(argv, os.environ, family)
    except MegatronDsError as error:
        report_before_launch(error)
    for note in resolved.notes:
        logger.info(note)
    if resolved.print_config:
        logger.info(describe(resolved))
        return
    # Torch and DeepSpeed take seconds to import, so everything above does without them.
    from megatron_ds.engine.failure import failing_together
    from megatron_ds.training.pretrain import pretrain

    with failing_together():
        pretrain(resolved, found)


if __name__ == "__main__":
    main()
