"""Preprocessing that is killed, and the run after it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.test_preprocess import run, write_lines

# Reads some batches, says so, and waits to be killed.
STUCK = """
import sys, time
from pathlib import Path
from megatron_ds.cli import preprocess
from megatron_ds.data import partitions
read_batches = partitions.read_batches
def stuck(*arguments):
    for number, batch in enumerate(read_batches(*arguments)):
        yield batch
        if number == 20:
            Path(sys.argv[1]).touch()
            time.sleep(600)
partitions.read_batches = stuck
preprocess.BATCH_BYTES = 1000
preprocess.main(sys.argv[2:])
"""


def wait_until(is_done, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def is_gone(group: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("options", [("--workers", "1"), ("--workers", "2"), ("--partitions", "2", "--workers", "4")])
def test_preprocess_killed_leaves_no_files_of_final_name_and_no_process(
    tmp_path: Path, options: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    texts = [f"text {number}" for number in range(5000)]
    source = write_lines(tmp_path / "in.jsonl", texts)
    ready, output = tmp_path / "ready", tmp_path / "out"
    command = ["--input", str(source), "--output-prefix", str(output / "x"), "--tokenizer-type", "ByteTokenizer"]
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(ready), *command, *options], start_new_session=True)
    try:
        wait_until(ready.exists)
        process.kill()
        process.wait()
        assert all(".part" in path.name for path in output.iterdir())
        if "--partitions" not in options:
            wait_until(lambda: is_gone(process.pid))
    finally:
        if not is_gone(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    left = sorted(path.name for path in output.iterdir())
    with caplog.at_level(logging.WARNING, "megatron_ds"):
        assert len(run(source, output / "x")) == len(texts)
    assert f"{', '.join(left)} in {output}: left by a run that was killed" in caplog.text
    assert sorted(path.name for path in output.iterdir() if path.name not in left) == [
        f"x_text_document{suffix}" for suffix in (".bin", ".idx", ".json")
    ]


def test_preprocess_tells_that_files_will_be_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_lines(tmp_path / "in.jsonl", ["a"])
    with caplog.at_level(logging.INFO, "megatron_ds"):
        run(source, tmp_path / "out")
        assert "are there already" not in caplog.text
        run(source, tmp_path / "out")
    prefix = f"{tmp_path / 'out'}_text_document"
    assert f"{prefix}.bin and .idx are there already; they are replaced when this run is complete" in caplog.messages
