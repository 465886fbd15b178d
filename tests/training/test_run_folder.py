"""Files of an earlier run, and a folder that can't be written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from megatron_ds.config import ResolvedRun, resolve
from megatron_ds.engine.base import TrainProgress
from megatron_ds.errors import TrainingError
from megatron_ds.training.run import _note_options
from megatron_ds.training.run_folder import set_aside
from megatron_ds.training.starts import read_starts
from tests.config.helpers import environ, words


def _resolved(seed: int) -> ResolvedRun:
    return resolve(words("--vocab-size", "61", "--seed", str(seed)), environ(1), "test")


def test_set_aside_takes_the_first_number_that_is_free_for_all_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.jsonl", "b.json", "b.1.json"):
        (tmp_path / name).write_text(name)
    with caplog.at_level(logging.INFO, "megatron_ds"):
        set_aside(tmp_path, ("a.jsonl", "b.json", "c.json"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.2.jsonl", "b.1.json", "b.2.json"}
    assert "are now a.2.jsonl, b.2.json" in caplog.text


def test_new_run_in_the_folder_of_one_without_a_checkpoint_keeps_that_ones_files_apart(tmp_path: Path) -> None:
    for seed in (1, 2):
        _note_options(_resolved(seed), tmp_path, TrainProgress(), None)
    _note_options(_resolved(3), tmp_path, TrainProgress(step=2), tmp_path)
    assert [start.options["training"]["seed"] for start in read_starts(tmp_path)] == [2, 3]
    stems = ("deepspeed_config{}.json", "run_config{}.json", "starts{}.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {stem.format(end) for stem in stems for end in ("", ".1")}
    assert '"seed": 1' in (tmp_path / "run_config.1.json").read_text()


def test_options_that_cannot_be_written_end_the_run_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "starts.jsonl").mkdir()
    with pytest.raises(TrainingError, match=r"starts\.jsonl can't be written: Is a directory"):
        _note_options(_resolved(1), tmp_path, TrainProgress(step=2), None)
