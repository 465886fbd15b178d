"""A checkpoint is valid, or it is gone; the one before stays valid until then."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import pytest

from megatron_ds.checkpoint import Layout, Manifest, find_checkpoint, point_latest_at
from megatron_ds.checkpoint.commit import commit, make_room
from megatron_ds.checkpoint.hashed_file import FileRecord
from megatron_ds.checkpoint.pending import WrittenFiles
from megatron_ds.errors import Problem

RECORD = FileRecord(3, "ab" * 32, "cd" * 32)
MODEL = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "seq_length": 4}


def _manifest(consumed: int) -> Manifest:
    progress = {"step": 4, "skipped_steps": 0, "consumed_samples": consumed}
    return Manifest(progress, Layout(1, 1, 2, 1, "fp32"), MODEL, parameters={})


def _commit(folder: Path, tag: str = "global_step4", *, consumed: int = 8, failure: str = "") -> Problem | None:
    (folder / tag).mkdir()
    (folder / tag / "one.pt").write_text("one")
    written = [WrittenFiles(0, {"one.pt": RECORD}), WrittenFiles(1, {"a/two.pt": RECORD}, failure)]
    return commit(folder, tag, _manifest(consumed), written)


def test_commit_lists_the_files_of_all_ranks_and_moves_latest(tmp_path: Path) -> None:
    assert _commit(tmp_path) is None
    found = find_checkpoint(tmp_path)
    assert found.tag == "global_step4"
    assert found.manifest.files == {name: asdict(RECORD) for name in ("a/two.pt", "one.pt")}


def test_commit_of_what_a_rank_could_not_write_removes_it_and_names_the_checkpoint_before(tmp_path: Path) -> None:
    _commit(tmp_path, "global_step2")
    problem = _commit(tmp_path, failure="x/two.pt: No space left on device")
    assert "global_step4 is not saved: rank 1 can't write x/two.pt: No space left on device" in str(problem)
    assert f"{tmp_path / 'global_step2'} is still the last checkpoint" in str(problem)
    assert find_checkpoint(tmp_path).tag == "global_step2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step2", "latest"]


def test_commit_whose_manifest_cannot_be_written_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "global_step4.partial").mkdir()
    (tmp_path / "latest.partial").mkdir()  # in the way of the pointer
    problem = _commit(tmp_path)
    assert "rank 0 can't write" in str(problem)
    assert "there is no checkpoint yet" in str(problem)
    assert not (tmp_path / "global_step4").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_checkpoint_that_latest_names_stays_until_the_new_one_of_its_step_is_whole(fails: bool, tmp_path: Path) -> None:
    """A run that went back to an earlier step comes to the step of the last checkpoint again."""
    _commit(tmp_path, consumed=8)
    make_room(tmp_path, "global_step4")
    while_writing = find_checkpoint(tmp_path)
    assert while_writing.manifest.progress["consumed_samples"] == 8
    _commit(tmp_path, consumed=9, failure="x: No space left" if fails else "")
    found = find_checkpoint(tmp_path)
    assert found.manifest.progress["consumed_samples"] == (8 if fails else 9)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"latest", found.tag}
    assert (found.tag == "global_step4") == (not fails)


def test_make_room_removes_what_latest_does_not_name(tmp_path: Path) -> None:
    _commit(tmp_path)
    point_latest_at(tmp_path, "global_step2")
    make_room(tmp_path, "global_step4")
    make_room(tmp_path, "global_step6")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def _killed_between_the_two_steps(folder: Path) -> None:
    _commit(folder, consumed=8)
    (folder / "global_step4").rename(folder / "global_step4.before")


@pytest.mark.parametrize("step", [None, 4])
def test_checkpoint_that_was_renamed_before_a_kill_is_found_under_its_other_name(
    step: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _killed_between_the_two_steps(tmp_path)
    with caplog.at_level(logging.INFO, "megatron_ds"):
        found = find_checkpoint(tmp_path, step)
    assert (found.tag, found.manifest.progress["consumed_samples"]) == ("global_step4.before", 8)
    assert "global_step4.before is what was there before" in caplog.text
    assert make_room(tmp_path, "global_step4") is None
    assert (tmp_path / "latest").read_text() == "global_step4.before"


def test_checkpoint_that_was_renamed_gets_its_name_back_when_the_run_goes_on_past_its_step(tmp_path: Path) -> None:
    _killed_between_the_two_steps(tmp_path)
    (tmp_path / "global_step4").mkdir()
    (tmp_path / "global_step4/half.pt").touch()
    assert make_room(tmp_path, "global_step6") is None
    _commit(tmp_path, "global_step6", consumed=12)
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "global_step4", "global_step6"}
    assert find_checkpoint(tmp_path, 4).manifest.progress["consumed_samples"] == 8
    assert not (tmp_path / "global_step4/half.pt").exists()


def test_make_room_that_fails_names_the_checkpoint_that_is_still_the_last(tmp_path: Path) -> None:
    _commit(tmp_path)
    (tmp_path / "latest.partial").mkdir()  # in the way of the pointer
    problem = make_room(tmp_path, "global_step4")
    assert "global_step4 is not saved: can't make room for it" in str(problem)
    assert f"{tmp_path / 'global_step4'} is still the last checkpoint" in str(problem)
    assert find_checkpoint(tmp_path).tag == "global_step4"
