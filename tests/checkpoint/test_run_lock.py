"""Two runs do not write into one folder, even when neither has saved anything yet."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from megatron_ds.checkpoint.run_lock import LOCK_NAME, run_lock
from megatron_ds.errors import ConfigError
from tests.dist.pool import ROOT
from tests.launch.helpers import PRETRAIN, launch, tiny_run, write_corpus

_HOLD = """
import sys
from pathlib import Path
from megatron_ds.checkpoint.run_lock import run_lock
with run_lock(Path(sys.argv[1]), "--save"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _other_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder until its input ends."""
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield other
    finally:
        other.communicate("")


def test_second_run_is_refused_and_told_about_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with _other_run(folder) as other:
        with pytest.raises(ConfigError) as caught, run_lock(folder, "--save"):
            pass
        assert f"another run writes into {folder}: process {other.pid} on " in str(caught.value)
        assert json.loads((folder / LOCK_NAME).read_text())["pid"] == other.pid  # untouched
    with run_lock(folder, "--save"):
        assert (folder / LOCK_NAME).exists()
    assert list(folder.iterdir()) == []


def test_lock_of_a_killed_run_does_not_hold(tmp_path: Path) -> None:
    with _other_run(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (tmp_path / LOCK_NAME).exists()
        with run_lock(tmp_path, "--save"):
            assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK_NAME).exists()


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be made"), run_lock(tmp_path / "file" / "run", "--save"):
        pass


def test_run_into_a_folder_in_use_ends_before_training(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "tiny_text_document")
    with _other_run(tmp_path / "saved") as other:
        finished = launch([sys.executable, PRETRAIN, *tiny_run(corpus, save="saved")], tmp_path)
    assert finished.exit_code == 2, finished.output
    assert f"another run writes into saved: process {other.pid} on " in finished.output
    assert "from --save" in finished.output
    assert list((tmp_path / "saved").iterdir()) == []


def test_lock_of_a_folder_that_was_removed_is_taken_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with run_lock(folder, "--save") as lock:
        assert not lock.renew()
        shutil.rmtree(folder)
        assert lock.renew()
        assert not lock.renew()
        assert json.loads((folder / LOCK_NAME).read_text())["pid"] == os.getpid()
    assert list(folder.iterdir()) == []


def test_lock_of_a_folder_that_another_run_has_by_now_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with run_lock(folder, "--save") as lock:
        shutil.rmtree(folder)
        with _other_run(folder) as other, pytest.raises(ConfigError, match=f"process {other.pid} on "):
            lock.renew()


_REMOVED_WHILE_IT_RUNS = """
import shutil
from megatron_ds.cli.pretrain import main
from megatron_ds.training.saving import CheckpointSaver
save = CheckpointSaver.__call__
def save_then_lose(saver, folder, judgement):
    save(saver, folder, judgement)
    if saver.saved_step == 1:
        shutil.rmtree(folder)
CheckpointSaver.__call__ = save_then_lose
main()
"""


def test_run_whose_folder_is_removed_says_so_and_writes_its_files_anew(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "tiny_text_document")
    flags = tiny_run(corpus, save="saved", train_iters="3", save_interval="1", log_interval="1", eval_iters="0")
    finished = launch([sys.executable, "-c", _REMOVED_WHILE_IT_RUNS, *flags], tmp_path)
    assert finished.exit_code == 0, finished.output
    assert finished.output.count("saved was removed while the run went on") == 1
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names >= {"run_config.json", "starts.jsonl", "metrics.jsonl", "global_step2", "global_step3", "latest"}
    assert "global_step1" not in names
    assert '"step": 3' in (tmp_path / "saved/metrics.jsonl").read_text()
