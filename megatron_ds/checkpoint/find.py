"""Finding the checkpoint that ``--load`` means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megatron_ds.checkpoint.hashed_file import replace_text
from megatron_ds.checkpoint.manifest import MANIFEST_NAME, Manifest
from megatron_ds.config.blocks import RunConfig
from megatron_ds.errors import CheckpointError, Problem
from megatron_ds.utils.logging import logger

LATEST = "latest"
FRESH_START = ", or add --allow-fresh-start to begin at step 0 when nothing is found"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint that exists.

    Attributes:
        folder: the run's folder.
        tag: the checkpoint's own folder inside it.
        manifest: its contents.
    """

    folder: Path
    tag: str
    manifest: Manifest


def find_checkpoint(
    folder: Path, step: int | None = None, option: str = "--load", otherwise: str = ""
) -> FoundCheckpoint:
    """The checkpoint that `folder`'s tracker file ``latest`` names, or that of a step.

    Args:
        folder: of a run, or of one checkpoint inside it.
        step: whose checkpoint; the one that ``latest`` names by default.
        option: which one the user gave the folder with, for messages.
        otherwise: how advice goes on where the folder holds no checkpoint at all.

    Raises:
        CheckpointError: there is none, or it is not whole. Says which file is missing.
    """
    if not folder.is_dir():
        advice = f"check the path given to {option}{otherwise}"
        raise CheckpointError(Problem(f"there is no folder {folder}", advice=advice))
    if step is not None:
        tag = f"global_step{step}"
        if not any((folder / name).is_dir() for name in (tag, aside_tag(tag))):
            message = f"{folder} holds no checkpoint of step {step}{_tags_hint(folder)}"
            raise CheckpointError(Problem(message, advice="name a step that is there"))
        return _opened(folder, tag, f"step {step} is", "name a step that is there")
    if (folder / MANIFEST_NAME).is_file():
        return _opened(folder.absolute().parent, folder.absolute().name, f"{option} names", "name another checkpoint")
    tracker = folder / LATEST
    if not tracker.is_file():
        raise CheckpointError(
            Problem(
                f"{folder} holds no checkpoint: it has no file named {LATEST}{_tags_hint(folder)}",
                advice=_advice_without_latest(folder, option, otherwise),
            )
        )
    advice = f"write the name of a whole checkpoint into {tracker}"
    try:
        tag = tracker.read_text().strip()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            Problem(f"{tracker} can't be read ({error}){_tags_hint(folder)}", advice=advice)
        ) from error
    return _opened(folder, tag, f"{tracker} names", advice)


def _advice_without_latest(folder: Path, option: str, otherwise: str) -> str:
    if _tags(folder):
        return f"name one of them with --{'load-' if option == '--load' else ''}step, or write its name into latest"
    return f"check the path given to {option}{otherwise}"


def _opened(folder: Path, tag: str, origin: str, advice: str) -> FoundCheckpoint:
    try:
        there = _or_aside(folder, tag)
        return FoundCheckpoint(folder, there, Manifest.read(folder / there))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            Problem(
                f"{origin} {tag!r}, but {folder / tag} holds no readable manifest ({error}){_tags_hint(folder)}",
                advice=advice,
            )
        ) from error


def aside_tag(tag: str) -> str:
    """The name of a checkpoint while another one of its step is written in its place."""
    return f"{tag}.before"


def _or_aside(folder: Path, tag: str) -> str:
    """A checkpoint's name, or the one that it had when the run was killed while it wrote the step anew."""
    aside = aside_tag(tag)
    if (folder / tag / MANIFEST_NAME).exists() or not (folder / aside / MANIFEST_NAME).is_file():
        return tag
    logger.info("%s: %s is not whole; %s is what was there before", folder, tag, aside)
    return aside


def best_step(folder: Path) -> int | None:
    """The step of the checkpoint with the best score, the first of several; None where none was judged.

    Args:
        folder: of a run.
    """
    scores: dict[int, float] = {}
    for tag in _tags(folder):
        try:
            manifest = Manifest.read(folder / tag)
        except (OSError, ValueError, RecursionError):
            continue
        if manifest.score is not None:
            scores[manifest.progress["step"]] = manifest.score
    return min(scores, key=lambda step: (-scores[step], step), default=None)


def point_latest_at(folder: Path, tag: str) -> None:
    """Makes `tag` the checkpoint that ``--load`` finds. Call it when all of its files are on disk."""
    replace_text(folder / LATEST, tag)


def progress_of_load(run: RunConfig) -> dict[str, int]:
    """Step and consumed samples that a run begins at; nothing where it begins anew, or its checkpoint is not whole."""
    if run.checkpoint.load is None:
        return {}
    try:
        return progress_of(find_checkpoint(Path(run.checkpoint.load), run.checkpoint.load_step), run)
    except CheckpointError:
        return {}


def progress_of(found: FoundCheckpoint | None, run: RunConfig) -> dict[str, int]:
    """Step and consumed samples that a run begins at with a checkpoint that was found; nothing where it begins anew."""
    if found is None or run.checkpoint.finetune:
        return {}
    return {name: found.manifest.progress[name] for name in ("step", "consumed_samples")}


def holds_nothing(folder: Path) -> bool:
    """Whether a folder has no checkpoint, nor the name of one."""
    return not (folder / LATEST).exists() and not _tags(folder)


def _tags(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}"))


def _tags_hint(folder: Path) -> str:
    tags = _tags(folder)
    return f"; whole checkpoints here: {', '.join(tags)}" if tags else ""
