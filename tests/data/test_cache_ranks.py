"""D14: an index that one rank of each node builds, while all others wait."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatron_ds.config.blocks import DataConfig
from megatron_ds.data import SampleCounts, build_gpt_datasets
from megatron_ds.data import gpt_build as build_module
from megatron_ds.data.samples import batch_hash
from megatron_ds.engine.distributed import wait_for_all
from megatron_ds.errors import TrainingError
from tests.data.conftest import numbered_documents, rows, write_documents
from tests.dist.pool import run_ranks

SECONDS = 2.0


def slow(function: Any, *arguments: Any, **options: Any) -> Any:
    time.sleep(SECONDS)
    return function(*arguments, **options)


def first_batch(prefix: str, folder: str, ranks_per_node: int) -> tuple[str, float]:
    """The hash of the first 20 samples on this rank, and the seconds that it took to have them."""
    rank = dist.get_rank()
    build_module.build_gpt_index = partial(slow, build_module.build_gpt_index)
    cache = f"{folder}/node{rank // ranks_per_node}"
    store = dist.FileStore(f"{folder}/waiting", dist.get_world_size())
    start = time.monotonic()
    datasets = build_gpt_datasets(
        DataConfig(data_path=[prefix], split="8,1,1", data_cache_path=cache),
        seq_length=16,
        seed=1,
        samples=SampleCounts(20, 2, 2),
        is_builder=rank % ranks_per_node == 0,
        wait=partial(wait_for_all, store, "indices", check=dist.is_initialized),
    )
    return batch_hash(datasets.train[number] for number in range(20)), time.monotonic() - start


def test_cold_cache_of_two_nodes_with_eight_ranks_and_a_slow_builder(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "a", numbered_documents([50] * 40))
    results = run_ranks(8, first_batch, prefix=prefix, folder=str(tmp_path), ranks_per_node=4)
    assert len({digest for digest, _ in results}) == 1
    # Three indices: all ranks waited for all of them.
    assert min(seconds for _, seconds in results) > 3 * SECONDS
    assert {path.name for path in tmp_path.glob("node*")} == {"node0", "node1"}


def wait_alone(folder: str) -> str:
    def nobody_comes() -> None:
        raise TrainingError("rank 1 failed")

    if dist.get_rank() == 1:
        return ""
    store = dist.FileStore(f"{folder}/waiting", dist.get_world_size())
    with pytest.raises(TrainingError) as error:
        wait_for_all(store, "indices", check=nobody_comes)
    return str(error.value)


def test_waiting_for_a_rank_that_failed_ends(tmp_path: Path) -> None:
    assert run_ranks(2, wait_alone, folder=str(tmp_path)) == ["TrainingError: rank 1 failed", ""]


def test_cache_is_whole_after_a_kill_in_the_middle_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D14 (e): what a killed job leaves is a file under another name, and the next job builds anew."""
    prefix = write_documents(tmp_path / "a", numbered_documents([50] * 40))
    expected = rows(_datasets(prefix, tmp_path / "good").train)
    broken = tmp_path / "broken"
    with monkeypatch.context() as patch:
        # Killed after the first of the two files: neither `finally` nor anything else runs.
        patch.setattr(Path, "replace", _die_at_second_call())
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            _datasets(prefix, broken)
    assert [path.suffix for path in broken.iterdir()].count(".part") == 1
    assert rows(_datasets(prefix, broken).train) == expected


def _datasets(prefix: str, cache: Path) -> Any:
    return build_gpt_datasets(
        DataConfig(data_path=[prefix], split="1,0,0", data_cache_path=str(cache)),
        seq_length=16,
        seed=1,
        samples=SampleCounts(20, 0, 0),
        is_builder=True,
        wait=lambda: None,
    )


def _die_at_second_call() -> Any:
    calls: list[Path] = []
    replace = Path.replace

    def replace_once(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    return replace_once
