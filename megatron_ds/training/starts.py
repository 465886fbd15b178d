"""`starts.jsonl`: with which options each part of a run was trained, so that any step of it can be looked at later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron_ds.config.blocks import RunConfig

STARTS_FILE = "starts.jsonl"


@dataclass(frozen=True)
class Start:
    """One start of a run, at its beginning or from a checkpoint.

    Attributes:
        step: optimizer steps done before it.
        consumed_samples: training samples used before it.
        options: every option that was in force, by block, and the number of processes (as run_config.json has them).
    """

    step: int
    consumed_samples: int
    options: dict[str, Any]

    def consumed_before(self, step: int) -> int:
        """Samples consumed before a step of this part: all of its steps have the same batch size."""
        return self.consumed_samples + (step - 1 - self.step) * self.global_batch_size

    @property
    def global_batch_size(self) -> int:
        """Samples in one of its steps."""
        return RunConfig.model_validate(self.options).global_batch_size


def note_start(folder: Path, start: Start, loaded: Path | None) -> None:
    """Adds a start to the file of a run's folder. One process calls it.

    Args:
        folder: of ``--save``; made when it is missing.
        start: the start.
        loaded: folder of the run that was loaded: the starts that led to its checkpoint are copied when the run goes on
            in another folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STARTS_FILE
    earlier: list[Start] = []
    if loaded is not None and not path.exists():
        earlier = [each for each in read_starts(loaded) if each.step < start.step]
    # A line that a crash cut short must not swallow this one.
    is_cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" if is_cut else "")
        for each in (*earlier, start):
            file.write(json.dumps(asdict(each)) + "\n")


def read_starts(folder: Path) -> list[Start]:
    """The starts of a run, in the order in which they happened; lines that a crash cut short are passed over."""
    try:
        lines = (folder / STARTS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    starts = []
    for line in lines:
        try:
            content = json.loads(line)
            starts.append(Start(int(content["step"]), int(content["consumed_samples"]), dict(content["options"])))
        except (ValueError, KeyError, TypeError):
            continue
    return starts


def start_of_step(starts: list[Start], step: int) -> Start | None:
    """The start with which a step was trained last: a step that was done again counts as it was done then."""
    return next((start for start in reversed(starts) if start.step < step), None)
