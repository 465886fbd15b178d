"""Making a checkpoint valid, and removing one: in an order in which no moment leaves half of one that looks whole."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from megatron_ds.checkpoint.find import LATEST, aside_tag, point_latest_at
from megatron_ds.checkpoint.manifest import MANIFEST_NAME, Manifest
from megatron_ds.checkpoint.pending import WrittenFiles, describe_failure
from megatron_ds.errors import Problem


def commit(folder: Path, tag: str, manifest: Manifest, written: Sequence[WrittenFiles]) -> Problem | None:
    """Makes a checkpoint the one that ``--load`` finds, or removes what there is of it.

    Args:
        folder: of the run.
        tag: the checkpoint's folder in it.
        manifest: what describes it, without its files.
        written: what every rank has written.

    Returns:
        None; or the problem, when a rank could not write, or the manifest or ``latest`` can't be written.
    """
    failures = [f"rank {one.rank} can't write {one.failure}" for one in written if one.failure]
    if not failures:
        files = {name: asdict(record) for one in written for name, record in one.files.items()}
        try:
            replace(manifest, files=dict(sorted(files.items()))).write(folder / tag)
            point_latest_at(folder, tag)
        except OSError as error:
            failures.append(f"rank 0 can't write {describe_failure(error, folder / tag)}")
    if not failures:
        _put_back(folder)
        return None
    if latest_tag(folder) != tag:
        # Makes room on a disk that may be full.
        remove_checkpoint(folder / tag)
    return _not_saved(folder, tag, failures)


def make_room(folder: Path, tag: str) -> Problem | None:
    """Removes what there is of a checkpoint that is to be written: of an attempt that was cut short, or of a run that
    was then taken back to an earlier step.

    The one that ``latest`` names gets another name instead, and goes when the new one is whole.

    Args:
        folder: of the run.
        tag: the checkpoint's folder in it.

    Returns:
        None; or the problem, when it can't be renamed. It is then as it was.
    """
    aside = folder / aside_tag(tag)
    try:
        if latest_tag(folder) == tag and is_whole(folder / tag):
            remove_checkpoint(aside)
            (folder / tag).rename(aside)
            _point_at_aside(folder, tag)
            return None
        if latest_tag(folder) == tag and is_whole(aside):
            # Killed between the two lines above.
            point_latest_at(folder, aside.name)
    except OSError as error:
        return _not_saved(folder, tag, [f"can't make room for it: {describe_failure(error, folder)}"])
    remove_checkpoint(folder / tag)
    return None


def _point_at_aside(folder: Path, tag: str) -> None:
    try:
        point_latest_at(folder, aside_tag(tag))
    except OSError:
        (folder / aside_tag(tag)).rename(folder / tag)
        raise


def _put_back(folder: Path) -> None:
    """Ends what `make_room` began, for this checkpoint and for those whose new one never became whole: the run may have
    gone on past their step.
    """
    for aside in folder.glob(aside_tag("global_step*")):
        tag = aside.with_suffix("")
        if is_whole(tag) or not is_whole(aside):
            remove_checkpoint(aside)
            continue
        remove_checkpoint(tag)
        with suppress(OSError):  # it is as whole under its other name
            aside.rename(tag)


def remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint, or what is left of one, as far as that can be done.

    Its manifest goes first: without it the folder is no checkpoint, wherever the removal ends.
    """
    if not folder.exists():
        return
    try:
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Whether a folder holds a checkpoint, and not only parts of one."""
    return (folder / MANIFEST_NAME).is_file()


def latest_tag(folder: Path) -> str | None:
    """The checkpoint that ``latest`` names; None where there is no such file."""
    try:
        return (folder / LATEST).read_text().strip()
    except (OSError, ValueError):
        return None


def _not_saved(folder: Path, tag: str, failures: Sequence[str]) -> Problem:
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    latest = latest_tag(folder)
    if latest and not is_whole(folder / latest) and is_whole(folder / aside_tag(latest)):
        latest = aside_tag(latest)
    kept = f"{folder / latest} is still the last checkpoint" if latest else "there is no checkpoint yet"
    return Problem(
        f"{folder / tag} is not saved: {failures[0]}{more}",
        advice=f"{kept}; see that the disk has room and that the folder can be written to, and go on with --load",
    )
