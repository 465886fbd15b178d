"""An exception on one rank ends all ranks, with that rank's code and message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from megatron_ds.checkpoint import find_checkpoint
from tests.dist.pool import ROOT
from tests.launch.helpers import PP, PRETRAIN, TP, deepspeed, fork, launch, tiny_run, torchrun

FAILING_RUN = str(ROOT / "tests" / "launch" / "failing_run.py")


@pytest.mark.slow
def test_exception_in_backward_of_a_stage_ends_all_ranks_under_torchrun(corpus: str, tmp_path: Path) -> None:
    run = [FAILING_RUN, "fail=backward", *tiny_run(corpus), PP, "2"]
    finished = launch(torchrun(2, *run), tmp_path)
    assert finished.exit_code == 1, finished.output  # torchrun's own, whatever the rank's
    assert "step 1/3" in finished.output
    assert "step 2/3" not in finished.output
    # Its traceback, and no other one: the stage that waited says at most that it saw another rank fail.
    assert finished.output.count("BrokenPartError: in backward") == 1
    # Under ZeRO, DeepSpeed would load it at each start, for seconds.
    assert "torch.compile's backend loaded: False" in finished.output
    assert finished.output.count("[rank 1] Traceback") == 1
    assert "[rank 0] Traceback" not in finished.output


@pytest.mark.slow
def test_our_error_in_evaluation_ends_all_ranks_with_its_code_under_deepspeed(corpus: str, tmp_path: Path) -> None:
    run = [FAILING_RUN, "fail=evaluation", *tiny_run(corpus, train_iters="1"), TP, "2"]
    start = time.monotonic()
    finished = launch(deepspeed(2, *run), tmp_path)
    assert finished.exit_code == 3, finished.output
    assert time.monotonic() - start < 180  # 60 s on idle cores, start included
    assert finished.output.count("[rank 1] DataError: broken in evaluation") == 1
    assert "Traceback" not in finished.output


@pytest.mark.slow
def test_rank_killed_while_it_saves_ends_all_under_deepspeed_and_leaves_the_checkpoint_before(
    corpus: str, tmp_path: Path
) -> None:
    """C4."""
    run = tiny_run(corpus, train_iters="4", save="saved", save_interval="2")
    finished = launch(deepspeed(2, FAILING_RUN, "fail=killed_while_saving", *run, "--zero-stage", "1"), tmp_path)
    assert finished.exit_code == 256 - 9, finished.output  # the launcher's exit(-SIGKILL), as the shell sees it
    assert "step 4/4" in finished.output
    assert "[rank 0] Traceback" not in finished.output
    assert find_checkpoint(tmp_path / "saved").tag == "global_step2"
    assert not (tmp_path / "saved" / "global_step4" / "manifest.json").exists()


@pytest.mark.slow
def test_file_that_may_not_grow_ends_all_ranks_naming_it(corpus: str, tmp_path: Path) -> None:
    """C4: ulimit -f, in KiB."""
    command = deepspeed(2, PRETRAIN, *tiny_run(corpus, save="saved", save_interval="1"), "--zero-stage", "1")
    finished = launch(["bash", "-c", 'ulimit -f 64; exec "$@"', "limited", *command], tmp_path)
    assert finished.exit_code == 4, finished.output
    assert "CheckpointError: saved/global_step1 is not saved: rank 0 can't write saved/global_step1/" in finished.output
    assert "_states.pt: File too large" in finished.output
    assert "there is no checkpoint yet" in finished.output
    assert "step 2/3" not in finished.output
    assert "Traceback" not in finished.output
    assert not (tmp_path / "saved" / "global_step1").exists()


@pytest.mark.slow
def test_sigterm_to_one_rank_has_all_ranks_save_and_end_well(corpus: str, tmp_path: Path) -> None:
    """C6."""
    run = tiny_run(corpus, train_iters="1000", log_interval="1000", save="saved", eval_iters="0")
    finished = fork(2, FAILING_RUN, "fail=terminated", *run, PP, "2", folder=tmp_path)
    assert finished.exit_code == 0, finished.output
    step = find_checkpoint(tmp_path / "saved").manifest.progress["step"]
    assert step in (3, 4)
    assert f"stopped after step {step} of 1000: SIGTERM (rank 1)" in finished.output


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(), (PP, "2")], ids=["dp2", "pp2"])
def test_nan_on_one_rank_ends_all_with_one_code_and_names_the_last_checkpoint(
    layout: tuple[str, ...], corpus: str, tmp_path: Path
) -> None:
    """M5."""
    run = tiny_run(corpus, train_iters="5", save="saved", save_interval="2")
    finished = fork(2, FAILING_RUN, "fail=nan", *run, *layout, folder=tmp_path)
    assert finished.exit_code == 5, finished.output
    assert "TrainingError: step 3: the gradient is not finite" in finished.output
    assert "neither is the loss (nan), though every layer's output is" in finished.output
    assert "go on from saved/global_step2, the last checkpoint" in finished.output
    assert "step 4/5" not in finished.output
    assert "Traceback" not in finished.output
    assert not (tmp_path / "saved" / "global_step3").exists()
