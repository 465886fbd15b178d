"""What ``megatron-ds preprocess`` says before and after its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from megatron_ds.cli.token_files import tell_of_leftovers
from megatron_ds.data.indexed_dataset import idx_path
from megatron_ds.data.write_tokens import Builders, Totals
from megatron_ds.errors import Problem
from megatron_ds.utils.logging import logger
from megatron_ds.utils.text import counted


def tell_of_earlier(output_prefix: str, prefixes: Sequence[str]) -> None:
    """Tells which files will be replaced, and which ones a run that was killed has left.

    Args:
        output_prefix: ``--output-prefix``.
        prefixes: paths of the pairs that are about to be written.
    """
    for prefix in prefixes:
        if idx_path(prefix).exists():
            logger.info("%s.bin and .idx are there already; they are replaced when this run is complete", prefix)
    tell_of_leftovers(prefixes, output_prefix)


def no_text(key: str, totals: Totals) -> Problem:
    """The problem of an input that has nothing under a key."""
    num_bad = totals.bad.total()
    what = f"all of its {totals.num_lines} lines are empty" if totals.num_lines > 1 else "it is empty"
    if num_bad:
        bad = f"{num_bad} {'is' if num_bad == 1 else 'are'} bad ({_counts(totals.bad)})"
        others = " and the others empty" if totals.num_lines > num_bad else ""
        what = f"of its {counted(totals.num_lines, 'line')} {bad}{others}"
    first = f"; the first: {totals.first_bad}" if num_bad else ""
    return Problem(
        f"the input has no text under {key!r}: {what}{first}",
        advice="check --input and --json-keys; nothing was written",
    )


def _counts(bad: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in bad.most_common())


def report(builders: Builders, totals: Totals, seconds: float) -> None:
    """Tells what was written, what was left out, and how fast it went."""
    if totals.bad:
        lines = counted(totals.bad.total(), "bad line")
        logger.warning("%s skipped: %s; the first: %s", lines, _counts(totals.bad), totals.first_bad)
    for key, builder in builders.items():
        if totals.num_empty[key]:
            logger.warning("%s skipped under %r", counted(totals.num_empty[key], "empty document"), key)
        logger.info("%s: %s", builder.prefix, builder.size_text())
    num_bytes = totals.num_bytes
    logger.info("%.1f MB in %.1f s, %.1f MB/s", num_bytes / 1e6, seconds, num_bytes / 1e6 / seconds)
