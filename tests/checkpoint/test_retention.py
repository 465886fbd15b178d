"""Older checkpoints go when a newer one is whole, and only those that nobody asked to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.checkpoint import point_latest_at
from megatron_ds.checkpoint.manifest import MANIFEST_NAME
from megatron_ds.checkpoint.retention import Retention


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "outdated"),
    [
        (None, None, []),
        (1, None, [10, 20, 25, 30]),
        (2, None, [10, 20, 25]),
        (5, None, []),
        (9, None, []),
        (1, 10, [25]),
        (2, 20, [10, 25]),
    ],
)
def test_outdated_are_all_but_the_newest_and_the_multiples(
    keep_last: int | None, keep_every: int | None, outdated: list[int]
) -> None:
    # 50 is of a run that was taken back to an earlier step.
    assert Retention(keep_last, keep_every).outdated([50, 30, 35, 10, 25, 20], current=35) == outdated


def _checkpoint(folder: Path, name: str, *, whole: bool = True) -> None:
    (folder / name).mkdir()
    (folder / name / "states.pt").touch()
    if whole:
        (folder / name / MANIFEST_NAME).touch()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def test_remove_older_keeps_the_newest_and_what_is_not_the_runs(tmp_path: Path) -> None:
    for name in ("global_step2", "global_step4", "global_step6", "global_step8", "best_global_step2", "global_step02x"):
        _checkpoint(tmp_path, name)
    _checkpoint(tmp_path, "global_step3", whole=False)  # of a removal that was interrupted
    _checkpoint(tmp_path, "global_step7", whole=False)
    point_latest_at(tmp_path, "global_step6")
    Retention(keep_last=2).remove_older(tmp_path, current=6)
    others = {"global_step8", "global_step7", "best_global_step2", "global_step02x"}
    assert _names(tmp_path) == {"global_step4", "global_step6", *others}


def test_remove_older_without_a_limit_removes_nothing(tmp_path: Path) -> None:
    _checkpoint(tmp_path, "global_step2")
    _checkpoint(tmp_path, "global_step1", whole=False)
    Retention().remove_older(tmp_path, current=2)
    assert _names(tmp_path) == {"global_step1", "global_step2"}


def test_removal_that_is_interrupted_leaves_no_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    for name in ("global_step2", "global_step4"):
        _checkpoint(tmp_path, name)
    point_latest_at(tmp_path, "global_step4")
    monkeypatch.setattr("shutil.rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Retention(keep_last=1).remove_older(tmp_path, current=4)
    assert [path.name for path in (tmp_path / "global_step2").iterdir()] == ["states.pt"]
