"""Which checkpoints of a run stay when a newer one is whole."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.checkpoint.commit import is_whole, latest_tag, remove_checkpoint
from megatron_ds.checkpoint.find import best_step
from megatron_ds.config.blocks import CheckpointConfig


@dataclass(frozen=True)
class Retention:
    """The rule of ``--keep-last`` and ``--keep-every``. The checkpoint with the best score always stays.

    Attributes:
        keep_last: how many of the newest checkpoints stay; None keeps all.
        keep_every: checkpoints at multiples of this many steps stay as well.
    """

    keep_last: int | None = None
    keep_every: int | None = None

    @classmethod
    def of(cls, checkpoint: CheckpointConfig) -> Retention:
        """The rule of a run."""
        return cls(checkpoint.keep_last, checkpoint.keep_every)

    def outdated(self, steps: Iterable[int], current: int) -> list[int]:
        """The steps whose checkpoints go.

        Those after the current step stay: they are of a run that was taken back to an earlier step, and not this
        run's.

        Args:
            steps: of the checkpoints that there are.
            current: of the checkpoint that was just saved.
        """
        if self.keep_last is None:
            return []
        older = sorted(step for step in steps if step <= current)[: -self.keep_last]
        return [step for step in older if self.keep_every is None or step % self.keep_every]

    def remove_older(self, folder: Path, current: int) -> None:
        """Removes from a run's folder what is outdated, and what earlier removals and saves have left half done.

        Args:
            folder: of the run.
            current: step of the checkpoint that was just saved, and that ``latest`` names.
        """
        if self.keep_last is None:
            return
        found = {int(match[1]): path for path in folder.iterdir() if (match := _TAG.fullmatch(path.name))}
        half = [step for step, path in found.items() if step < current and not is_whole(path)]
        outdated = self.outdated(found.keys() - half, current)
        best = best_step(folder) if outdated else None
        for step in (*half, *outdated):
            if found[step].name != latest_tag(folder) and step != best:
                remove_checkpoint(found[step])


# Folders with other names are the user's.
_TAG = re.compile(r"global_step(\d+)")
