"""A run that ends before its last step goes on later, and leaves what its options ask to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ds.checkpoint import find_checkpoint
from tests.launch.helpers import PRETRAIN, fork, tiny_run


@pytest.mark.slow
def test_run_that_ends_at_its_interval_goes_on_to_its_end(corpus: str, tmp_path: Path) -> None:
    flags = tiny_run(corpus, train_iters="4", save="saved", exit_interval="2", keep_last="1", eval_iters="0")
    command = [PRETRAIN, "--async-save", *flags]
    folder = tmp_path / "saved"

    stopped = fork(1, *command, folder=tmp_path)
    assert stopped.exit_code == 0, stopped.output
    assert "stopped after step 2 of 4: exit_interval 2" in stopped.output
    assert find_checkpoint(folder).tag == "global_step2"

    ended = fork(1, *command, "--load", "saved", folder=tmp_path)
    assert ended.exit_code == 0, ended.output
    assert "stopped" not in ended.output
    assert find_checkpoint(folder).tag == "global_step4"
    files = {"global_step4", "latest", "run_config.json", "deepspeed_config.json", "starts.jsonl", "metrics.jsonl"}
    assert {path.name for path in folder.iterdir()} == files

    # Nothing is left to do, so nothing is written.
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "metrics.jsonl"}
    idle = fork(1, *command, "--load", "saved", "--log-interval", "7", folder=tmp_path)
    assert idle.exit_code == 0, idle.output
    assert "nothing to do" in idle.output
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "metrics.jsonl"} == before
