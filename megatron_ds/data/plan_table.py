"""What the start of a run says about its data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from megatron_ds.data.data_path import BlendPart
from megatron_ds.data.sample_kind import PlannedBlend, PlannedPart
from megatron_ds.data.samples import SampleCounts
from megatron_ds.data.sources import Blend
from megatron_ds.utils.logging import logger


def log_missing_sets(plans: Sequence[PlannedBlend], blends: Sequence[Blend], samples: SampleCounts) -> None:
    """Says which sets a run does without.

    Args:
        plans: the sets that it has.
        blends: those that its options name.
        samples: samples needed per set.
    """
    planned = {str(plan.blend) for plan in plans}
    if samples.valid and not any(blend.split == "valid" for blend in blends):
        logger.info("there is no validation set: nothing is evaluated during training")
    for blend in blends:
        if samples.of(blend.split) and str(blend) not in planned:
            logger.info("there is no %s set: its share of the documents has less than one sample", blend)


def plan_table(plans: Sequence[PlannedBlend], num_epochs: Callable[[PlannedPart], float]) -> list[str]:
    """The sets of a run as lines of a table, headings first.

    Args:
        plans: the sets.
        num_epochs: how many times the documents of a part are gone through.
    """
    rows = [("set", "documents", "tokens", "weight", "samples", "share", "epochs", "data")]
    for plan in plans:
        for part in plan.parts:
            share = part.num_samples / plan.num_samples
            rows.append(
                (
                    str(plan.blend),
                    f"{part.num_documents:,}",
                    f"{part.num_tokens:,}",
                    f"{part.share:.2%}",
                    f"{part.num_samples:,}",
                    f"{share:.2%}",
                    f"{num_epochs(part):.2f}",
                    _with_range(part.part),
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in (0, len(row) - 1) else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _with_range(part: BlendPart) -> str:
    is_whole = (part.start, part.end) == (0.0, 1.0)
    return part.prefix if is_whole else f"{part.prefix} {part.start:.4g}:{part.end:.4g}"
