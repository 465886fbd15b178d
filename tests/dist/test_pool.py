"""The pool of ranks: results, failures, deaths, hangs, leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.pool import ROOT, RankError, run_ranks


def _summed_rank(offset: float) -> tuple[int, Tensor]:
    total = torch.full((3,), dist.get_rank() + offset)
    dist.all_reduce(total)
    return dist.get_world_size(), total


def _raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("a wrong number")
    dist.barrier()


def _die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(7)
    dist.barrier()


def _hang_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(1000)


def _start_child(folder: Path) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    (folder / str(dist.get_rank())).write_text(f"{os.getpid()} {child.pid}")


def _environment() -> dict[str, str]:
    return dict(os.environ)


def _captured_graphs(compiled: bool) -> int:
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    def double(value: Tensor) -> Tensor:
        return 2 * value

    (torch.compile(double, backend=backend) if compiled else double)(torch.ones(2))
    return len(graphs)


def _cuda_rank() -> tuple[str, int, float]:
    total = torch.tensor(float(dist.get_rank()), device="cuda")
    dist.all_reduce(total)
    return dist.get_backend(), torch.cuda.current_device(), total.item()


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _assert_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_alive, pids))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_run_ranks_returns_each_ranks_result_by_value(world_size: int) -> None:
    results = run_ranks(world_size, _summed_rank, offset=0.5)
    assert [size for size, _ in results] == [world_size] * world_size
    for _, total in results:
        assert total.tolist() == [sum(rank + 0.5 for rank in range(world_size))] * 3
        assert not total.is_shared()


def test_run_ranks_with_a_raising_rank_shows_its_traceback_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=r"(?s)rank 1 raised:.*_raise_on.*ValueError: a wrong number"):
        run_ranks(2, _raise_on, rank=1)
    assert time.monotonic() - start < 30


def test_run_ranks_with_a_dead_rank_tells_its_exit_code_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 died with exit code 7"):
        run_ranks(2, _die_on, rank=1)
    assert time.monotonic() - start < 30


def test_run_ranks_with_a_hanging_rank_shows_where_it_hangs() -> None:
    with pytest.raises(RankError, match=r"(?s)no result within 3 s from ranks \[1\].*_hang_on"):
        run_ranks(2, _hang_on, rank=1, timeout=3)


def test_run_ranks_ends_ranks_and_their_children(tmp_path: Path) -> None:
    run_ranks(2, _start_child, folder=tmp_path)
    pids = [int(pid) for file in tmp_path.iterdir() for pid in file.read_text().split()]
    assert len(pids) == 4
    _assert_ended(pids)


def test_run_ranks_leaves_this_process_environment_alone() -> None:
    before = dict(os.environ)
    (inside,) = run_ranks(1, _environment)
    assert dict(os.environ) == before
    assert inside["CUDA_VISIBLE_DEVICES"] == ""
    assert inside["OMP_NUM_THREADS"] == "1"
    assert (inside["RANK"], inside["WORLD_SIZE"]) == ("0", "1")


@pytest.mark.parametrize(("dynamo", "graphs"), [(False, 0), (True, 1)])
def test_run_ranks_compiles_only_with_dynamo(dynamo: bool, graphs: int) -> None:
    assert run_ranks(1, _captured_graphs, dynamo=dynamo, compiled=True) == [graphs]


@pytest.mark.gpu
def test_run_ranks_on_cuda_gives_each_rank_its_gpu() -> None:
    world_size = min(2, torch.cuda.device_count())
    assert world_size > 0
    expected = [("nccl", rank, float(sum(range(world_size)))) for rank in range(world_size)]
    assert run_ranks(world_size, _cuda_rank, device="cuda") == expected


def test_run_ranks_whose_parent_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from tests.dist import pool, test_pool\n"
        f"pool.run_ranks(2, test_pool._sleep_and_tell, folder=Path({str(tmp_path)!r}))\n"
    )
    scratch = tempfile.TemporaryDirectory()  # not below tmp_path: names of sockets must be short
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "TMPDIR": scratch.name})
    deadline = time.monotonic() + 200  # it starts a fork server of its own, beside whatever else runs here
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int(file.stem) for file in tmp_path.glob("*.pid")]
    parent.kill()
    parent.wait()
    assert len(pids) == 2
    _assert_ended(pids)
    scratch.cleanup()


def _sleep_and_tell(folder: Path) -> None:
    (folder / f"{os.getpid()}.pid").touch()
    time.sleep(1000)
