"""``pretrain_gpt.py`` and ``pretrain_bert.py``: from the command line to `megatron_ds.training.pretrain`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from megatron_ds.checkpoint import FoundCheckpoint, checkpoint_problems
from megatron_ds.checkpoint.run_lock import RunLock, run_lock
from megatron_ds.cli.errors import report_before_launch, run_or_exit
from megatron_ds.cli.preflight import preflight
from megatron_ds.config import ResolvedRun, collect, describe, describe_draft, draft
from megatron_ds.errors import ConfigError, MegatronDsError
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
        print_what_is_known(argv, family)
        report_before_launch(error)
    if resolved.print_config:
        logger.info(describe(resolved))
        return
    for note in resolved.notes:
        logger.info(note)
    with folder_of(resolved, found) as lock:
        # Torch and DeepSpeed take seconds to import, so everything above does without them.
        from megatron_ds.engine.failure import failing_together
        from megatron_ds.training.pretrain import pretrain

        with failing_together():
            pretrain(resolved, found, lock)


@contextmanager
def folder_of(resolved: ResolvedRun, found: FoundCheckpoint | None) -> Iterator[RunLock | None]:
    """Keeps other runs out of the folder of ``--save``; the run's first process does that for all of them."""
    run, origins = resolved.run, resolved.origins
    if run.checkpoint.save is None or os.environ.get("RANK", "0") != "0":
        yield None
        return
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(run_lock(Path(run.checkpoint.save), origins["checkpoint.save"]))
            # Another run may have come and gone since the first look.
            found_now, problems = checkpoint_problems(run, origins)
            if problems:
                raise ConfigError(problems)
            if found_now is not None and found is not None and found_now.tag != found.tag:
                raise ConfigError(f"{found.folder} has a newer checkpoint than a moment ago: start again")
        except MegatronDsError as error:
            report_before_launch(error)
        yield lock


def print_what_is_known(argv: Sequence[str], family: str | None = None) -> None:
    """The notes on a run that has problems, of its options or others, and what ``--print-config`` can tell of it."""
    known = draft(argv, os.environ, family)
    resolved, problems = collect(argv, os.environ, family=family)
    complete = None if problems else resolved
    if known.print_config:
        logger.info("%s\n", describe_draft(known) if complete is None else describe(complete))
        return
    for note in known.notes if complete is None else complete.notes:
        logger.info(note)


if __name__ == "__main__":
    main()
