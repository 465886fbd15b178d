"""A checkpoint becomes the last one when every rank's files are on disk, and not before (field report C4)."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from benchmarks.tiny_run import Case
from megatron_ds.checkpoint import Manifest, find_checkpoint
from megatron_ds.checkpoint.hashed_file import HashedFile
from megatron_ds.checkpoint.pending import PendingFiles
from megatron_ds.errors import CheckpointError
from tests.dist.pool import RankError, run_ranks
from tests.engine.saving_run import SavingRun
from tests.full_disk import full_disk

LAYOUTS = [Case(dp=2, zero=1), Case(dp=2, zero=3, precision="bf16"), Case(tp=2, pp=2, zero=1)]
WAYS = [(), ("--async-save", "--save", "anywhere")]


def _name(value: object) -> str:
    if isinstance(value, Case):
        return f"tp{value.tp}pp{value.pp}dp{value.dp}z{value.zero}"
    return "async" if value else "sync"


def _save_once(case: Case, folder: Path) -> int:
    run = SavingRun(case, folder)
    run.step_and_save()
    run.saver.finish()
    return run.engine.zero_stage


@pytest.mark.parametrize(("case", "way"), [*((case, WAYS[0]) for case in LAYOUTS), (LAYOUTS[-1], WAYS[1])], ids=_name)
def test_manifest_has_every_file_with_its_size_and_hash(case: Case, way: tuple[str, ...], tmp_path: Path) -> None:
    case = Case(**{**vars(case), "more": way})
    assert run_ranks(case.world_size, _save_once, case=case, folder=tmp_path) == [case.zero] * case.world_size
    checkpoint = tmp_path / "global_step1"
    manifest = Manifest.read(checkpoint)
    assert manifest.options["checkpoint"]["async_save"] == bool(way)
    on_disk = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != "manifest.json"}
    assert {name: (record["bytes"], record["sha256"]) for name, record in manifest.files.items()} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in on_disk.items()
    }
    assert sum("optim_states" in name for name in on_disk) == case.world_size
    for name in on_disk:  # only archives can be mapped
        torch.load(checkpoint / name, mmap=True, weights_only=False)
    # No scripts of DeepSpeed's, and nothing half written.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step1", "latest"]


def _limited_second_save(case: Case, folder: Path) -> list[str]:
    """Saves step 1, step 2 while rank 1 may write files of 8 KiB at most, and step 2 again."""
    run = SavingRun(case, folder)
    run.step_and_save()
    run.saver.finish()
    messages = []
    with full_disk(8192) if run.mpu.global_rank == 1 else nullcontext():
        run.step()
        try:
            run.saver(folder)
            run.saver.finish()
        except CheckpointError as error:
            messages.append(str(error))
        messages.append(",".join(sorted(path.name for path in folder.iterdir())))
        messages.append(find_checkpoint(folder).tag)
        torch.distributed.barrier()
    run.saver.saved_step = None
    run.saver(folder)
    run.saver.finish()
    torch.distributed.barrier()
    messages.append(find_checkpoint(folder).tag)
    return messages


@pytest.mark.parametrize(("case", "way"), list(zip(LAYOUTS[:2], WAYS, strict=True)), ids=_name)
def test_rank_that_cannot_write_fails_the_save_on_all_ranks_and_leaves_the_last_checkpoint(
    case: Case, way: tuple[str, ...], tmp_path: Path
) -> None:
    case = Case(**{**vars(case), "more": way})
    first, *others = run_ranks(case.world_size, _limited_second_save, case=case, folder=tmp_path)
    assert others == [first] * (case.world_size - 1)
    message, files, kept, saved_again = first
    assert f"{tmp_path / 'global_step2'} is not saved: rank 1 can't write {tmp_path / 'global_step2'}/" in message
    assert "_states.pt: File too large" in message
    assert f"{tmp_path / 'global_step1'} is still the last checkpoint" in message
    assert (files, kept, saved_again) == ("global_step1,latest", "global_step1", "global_step2")


def _blocked_folder(case: Case, folder: Path) -> str:
    run = SavingRun(case, folder)
    run.step()
    try:
        run.saver(folder)
    except CheckpointError as error:
        return str(error)
    return "saved"


def test_folder_that_cannot_be_made_fails_the_save_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "global_step1").write_text("in the way")
    messages = run_ranks(2, _blocked_folder, case=Case(dp=2, zero=1), folder=tmp_path)
    assert len(set(messages)) == 1
    assert f"rank 0 can't write {tmp_path / 'global_step1'}: File exists (and 1 more)" in messages[0]
    assert "there is no checkpoint yet" in messages[0]


def _killed_in_second_save(case: Case, folder: Path) -> None:
    run = SavingRun(case, folder)
    run.step_and_save()
    run.saver.finish()
    write = HashedFile.write

    def killed(file: HashedFile, piece: bytes | memoryview) -> int:
        write(file, piece)
        file._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    if run.mpu.global_rank == 1:
        HashedFile.write = killed  # type: ignore[method-assign]
    run.step_and_save()
    run.saver.finish()


@pytest.mark.parametrize("way", WAYS, ids=_name)
def test_rank_killed_while_it_writes_leaves_the_last_checkpoint_and_the_step_can_be_saved_again(
    way: tuple[str, ...], tmp_path: Path
) -> None:
    case = Case(dp=2, zero=1, more=way)
    with pytest.raises(RankError):
        run_ranks(2, _killed_in_second_save, case=case, folder=tmp_path)
    half = tmp_path / "global_step2"
    assert half.is_dir()
    assert not (half / "manifest.json").exists()
    assert find_checkpoint(tmp_path).tag == "global_step1"

    (half / "left_behind.pt").touch()
    run_ranks(2, _save_second, case=case, folder=tmp_path)
    assert find_checkpoint(tmp_path).tag == "global_step2"
    assert not (half / "left_behind.pt").exists()


def _save_second(case: Case, folder: Path) -> None:
    run = SavingRun(case, folder)
    run.load(folder)
    run.step_and_save()
    run.saver.finish()


def _save_twice(case: Case, folder: Path) -> tuple[int, int]:
    run = SavingRun(case, folder)
    run.step_and_save()
    before = (folder / "latest").stat().st_mtime_ns
    run.saver(folder)
    return before, (folder / "latest").stat().st_mtime_ns


def test_step_that_is_saved_is_not_saved_again(tmp_path: Path) -> None:
    (times,) = run_ranks(1, _save_twice, case=Case(), folder=tmp_path)
    assert times[0] == times[1]


def _saved_slowly(case: Case, folder: Path) -> list[str]:
    """What a save logs whose files take a fifth of a second, and the error where its step can't be saved anew."""
    run = SavingRun(case, folder)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("megatron_ds").addHandler(handler)
    logging.getLogger("megatron_ds").setLevel(logging.INFO)
    save = run.engine.save

    def slowly(folder: Path, *, in_background: bool = False) -> PendingFiles:
        time.sleep(0.2)
        return save(folder, in_background=in_background)

    run.engine.save = slowly  # type: ignore[method-assign]
    run.step_and_save()
    logging.getLogger("megatron_ds").removeHandler(handler)
    run.saver.saved_step = None
    (folder / "latest.partial").mkdir(exist_ok=True)  # in the way of the pointer
    try:
        run.saver(folder)
    except CheckpointError as error:
        said.append(str(error))
    return [line for line in said if "saved" in line]


def test_save_tells_how_long_it_took_and_all_ranks_end_where_there_is_no_room(tmp_path: Path) -> None:
    first, second = run_ranks(2, _saved_slowly, case=Case(dp=2, zero=1), folder=tmp_path)
    written = re.search(r"written in (\d+\.\d) s", first[0])
    assert written is not None
    assert 0.2 <= float(written[1]) < 60
    assert first[1:] == second
    assert "global_step1 is not saved: can't make room for it" in second[0]
    assert f"{tmp_path / 'global_step1'} is still the last checkpoint" in second[0]
